"""eager.py owns the other side of `make generate-time`: tokens a second of transformers' eager attention on PyTorch, one
thread, f32 and bf16: eager.py FOLDER. Seconds are those of the processor where TIME=processor says so, else of the clock."""

import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
import transformers  # noqa: E402

now = time.process_time if os.environ.get("TIME") == "processor" else time.perf_counter
PROMPT, STEPS = 512, 32

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=dtype, attn_implementation="eager").eval()
    ids = torch.arange(1, PROMPT + 1)[None]
    with torch.no_grad():
        for _ in range(2):  # the first one warms up
            begin = now()
            out = model(ids, use_cache=True, logits_to_keep=1)
            prefill = now() - begin
        begin = now()
        for _ in range(STEPS):
            token = out.logits[:, -1:].argmax(-1)
            out = model(token, past_key_values=out.past_key_values, use_cache=True)
    print("PyTorch eager, %s: prefill %.1f, decode %.1f tokens/s" % (name, PROMPT / prefill, STEPS / (now() - begin)), flush=True)
