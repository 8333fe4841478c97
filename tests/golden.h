/* tests/golden.h owns the hashes of tests/test_golden.c. Made by `make golden`. */

static const uint64_t golden[] = {
    0xf138d79d11f239d0u, /* plain */
    0x53ff7616ae69f1c1u, /* causal */
    0x584af3157700b8fdu, /* wide */
    0x9f47f9bad56d92b2u, /* odd */
    0x76dda19735358afau, /* tiny */
    0x754cb1e974725d4eu, /* decode */
    0x581e2b00241f322bu, /* grouped */
    0x944b73be16a7638du, /* offset */
    0xed2a69686c301279u, /* window */
    0xbde7cec54ef67c04u, /* boolean */
    0xaa619bb7a0f8fda6u, /* bits */
    0xf875af4a89db4437u, /* bias */
    0xb8259bc6d4f288f9u, /* lengths */
    0xdfd5b3b6fcc388beu, /* alibi */
    0xd45850f9062f6b31u, /* softcap */
    0x9ca8b74bc6aecc2du, /* sinks */
    0xa8fcf431a8eb2bf8u, /* one */
    0x0bb563cc35bb7ea0u, /* f16 */
    0x6ada712511ce8300u, /* bf16 */
    0x268ef706be61af14u, /* mixed */
    0xf17d80d401d58235u, /* map */
    0xb7df400b927c6053u, /* ties */
    0xc20d0598842ae59fu, /* all */
    0x1d5e1aa5cfd429e9u, /* keys */
    0x5943e63c7a36b855u, /* values */
    0x254f02d34e7e1f09u, /* xl */
    0xee308a53cd24af4au, /* labels */
    0x70881a4c51b2862du, /* factor */
    0x5e427110bd460ba1u, /* toeplitz */
    0x3f6f4c683f883dc5u, /* t5 */
    0x01070ff200dce17eu, /* parabola */
    0x60eacb683197c399u, /* gaussian */
    0x0ca2bccf38b989cdu, /* span */
    0x3395eee19b464dd1u, /* modify */
    0x1eeef7348d3974a0u, /* terms */
    0x303dd5c272398a1du, /* rows */
    0x5c6e2f31d1939178u, /* rows terms */
    0x2ae3d39a05b50441u, /* splits */
    0xab6d0118484ab6aau, /* weights */
    0x1a659b1286eeb744u, /* map raw */
    0x020d792acda225b2u, /* map scores */
    0xd49c5c1772ad9679u, /* start */
    0x1b52ba3bb83fa99fu, /* offsets */
    0xe66a6b34d882680fu, /* aligned */
    0x82e3be33c82ba536u, /* rope */
    0x636f72398b2f46f6u, /* merge */
    0xebd0b211a948b159u, /* exp */
    0x0543bb451388bc34u, /* relu raw */
    0xb909ddfec140f0a7u, /* relu len */
    0x30e6212c82f35f6eu, /* relu var */
    0xc2cefb3c05847b03u, /* relu gau */
    0xe3b73a1ca44bebdfu, /* relu norm */
    0x68ea7de9db8297e3u, /* relu rela */
    0x0830d0e43baeb164u, /* edges */
    0xb6b16bd0dba0a367u, /* sinusoid */
    0xf8a0896df73432aau, /* signal */
    0x0690bbcd306c28f0u, /* window */
    0xdffa80b2b7b6c6abu, /* bells renorm */
    0x4a58d7785ed57b72u, /* bells */
    0x65aa03e966e8d39bu, /* span */
    0xa108f60ca0126c1bu, /* schedule band */
    0x8d0636a3ed1b8aaeu, /* schedule dilated */
    0x0d0592769a9f1fb8u, /* schedule lists */
    0xa41dfdbdf800866au, /* schedule image */
    0x945cfd99d4037b1cu, /* schedule sparse */
    0xdb0cf8a1ae170fa8u, /* star */
    0xe258b5ad6ae9355au, /* longformer */
    0x933e7c76c14e17c0u, /* etc */
    0xc0826d7ab585ffb0u, /* tree */
    0xcab06a27429c4897u, /* segmented */
    0xac07d2ee2ff0b291u, /* hierarchy */
    0x5ea90f7e62ca1f71u, /* xl layer */
    0x8a8967d462854768u, /* recursive */
    0x3d5f883c2d7779b8u, /* gemm */
    0x1b35f0ad5bfcdef4u, /* sets */
    0x68f3aea6228bbc38u, /* luna */
    0x15b334552296b14eu, /* luna causal */
    0x4487ca2bb41dc10fu, /* topk */
    0x0eae91559d95b59eu, /* topk lists */
    0xa6a42083a38a3f06u, /* lsh */
    0x430f974c1563dcdau, /* lsh qk */
    0x579baec1bf1c5708u, /* routing */
    0x9b7669a4dfef9601u, /* routing update */
    0x7032d70849d704b6u, /* gated */
    0xcc7c908b5db21a0eu, /* sinkhorn */
    0xcd8660b169e94541u, /* sinkhorn causal */
    0x58b77bc4fa8c9d88u, /* sortcut */
    0x832830279954d62au, /* sac */
    0x76f1df7030767ebbu, /* score mix */
    0x7fa6af76255fabf0u, /* realformer */
    0x3c3bf309855811ddu, /* predictive */
    0xadc0a1fcc47215d6u, /* evolving */
    0x646f92fabcee8286u, /* map apply */
    0x1d28feab7e0ec405u, /* lazyformer */
    0xbf6a43f4269b99e6u, /* camtl */
    0xd95e15b04a534eecu, /* synthesizer */
    0xba8f04827fd563ddu, /* multihead */
    0xbc8c7166d91d7345u, /* collaborative */
    0x7e5a720d23318541u, /* capsules */
    0xd1ccb6f3e2ae8a03u, /* talking */
    0x5353c875ce0db2a1u, /* losses */
    0xc49d83f861de5792u, /* layer norm */
    0x0314742952e4861cu, /* gtrxl */
    0x31d2bcf4e4f6521bu, /* trajectory */
    0x6273fdb18d6bfd1au, /* fourier */
    0x42cdbe35955171b7u, /* fnet */
    0xf0bc60641d27d2c1u, /* gmlp */
    0x7739fc91f2541f23u, /* mixer */
    0xf5eaf8afb90fa189u, /* norm sum */
    0xef624ceac6a3757cu, /* activations */
    0x1aa8cb71148cb41eu, /* encoder */
    0x0f04041f485d92f3u, /* decoder */
    0xa1f536dd41eb767bu, /* decoder step */
    0x02331423ab2d0282u, /* reversible */
    0x9b84545d9cf84751u, /* reversible inverse */
    0xdd6e4ef6b6b70ae1u, /* universal */
    0x731dfa3f05ce3936u, /* exits */
    0xc94c461a9157a7b9u, /* exit targets */
    0xe15d5e719b332445u, /* confidence */
    0xcd9d5b93f2a02d11u, /* exit decoder */
    0x3b48c3acdb831dd0u, /* lsh wrap */
    0x2d667fe3588ccd7fu, /* routing learned */
    0x4955f130b74d0e2eu, /* sinkhorn null */
    0xe3de3099d095fa8au, /* clustered causal */
    0x6473d609be8ada5du, /* probsparse samples */
    0x1b93a51e24dda68au, /* nystrom by batch */
    0xa60532a8e22a6bd1u, /* nystrom valid */
    0x4a740023960496c9u, /* multihead bias_kv */
    0x8f684bb4daa0f138u, /* segment bias */
    0x3423c263fb0517b0u, /* gemm codes */
    0xc2d751133f761dffu, /* gemm int8 */
    0x44480aef982cf812u, /* compute f16 */
    0x1dba35bc1a6a1727u, /* rope families */
    0xe20332a984b940ffu, /* recurrent kda */
    0x5f5e8821abd342d7u, /* recurrent dplr */
    0xf65e363ea87b1c45u, /* recurrent mamba2 */
    0xef154812499226b1u, /* recurrent mlstm */
    0x1e9eef79a08cff02u, /* recurrent parts */
    0x2de2c031b5dc7362u, /* sigmoid weights */
    0xbc0c95f421f707e2u, /* softpick weights */
    0x49b4c572ba12fe81u, /* forgetting */
    0xb6bdbe420b68b7aau, /* stick weights */
    0xe0158ab977a04859u, /* rms norm */
    0x7281b55a9593f647u, /* relative queries */
    0xc16335a5023355a8u, /* moba */
    0x6de6a4310b30b0dbu, /* quest */
    0x65e27f970c591b9fu, /* dsa */
    0xcff78c96585b849au, /* nsa */
    0x6339a20fb6a9a8c1u, /* xattention */
    0x9758d1328c6afb0cu, /* vertical slash */
    0x0877aab4fe08b4f3u, /* snapkv */
    0x67752939a5bd452au, /* h2o */
    0x9de063bbccb417c3u, /* block diffusion */
    0x4142e76d30769536u, /* neighborhood */
    0x290e30a1e65002f2u, /* draft tree */
    0x90e1efec03bc3825u, /* differential */
    0xee8a440060b66129u, /* entmax */
    0x151df97c6e376175u, /* contextual positions */
    0xe982c50b4369712bu, /* selective attention */
    0xdac8ca83dac5907du, /* latent layer */
    0x966020cfd6dcc1fdu, /* factor heads */
    0x9b6f48d71a90add5u, /* infini segments */
    0x2411fdaf5b7edeecu, /* transitions */
    0x8d760a157c316d69u, /* turned keys */
    0x193157026d8b891cu, /* yoso */
    0x93c4035ef061d731u, /* yoso sample */
    0xbc20491fea31b2f1u, /* mra */
    0x74ba5ff7c632b4bcu, /* long t5 */
    0x6457d28f15c51088u, /* norms of queries and keys */
    0xff6986f280c6886eu, /* log-linear */
    0x98f47fda960a32e7u, /* damped average */
    0x0c7a6d57901e5f2du, /* ngram */
    0x7bf7e479a21ebbe8u, /* retention */
    0x1d6280cb851440bcu, /* lightning */
    0xaa97415ad40df091u, /* gla */
    0x10a47fb1f34758dcu, /* hgrn2 */
    0x67a8d48937ddfcf9u, /* delta */
    0xce75eeb73270fca1u, /* gated delta */
    0xe9715573eabfbc0bu, /* rwkv6 */
    0x43ed64b56aae4128u, /* rwkv7 */
    0xb0712374e4ca2d87u, /* retention by head */
    0x53e2fafbfd910cd8u, /* log-linear sums */
    0xf993e1dae84b57d8u, /* gated norms */
    0xd2f187aab75ff053u, /* logs of decays */
    0xa6e01bb82725296cu, /* experts */
    0x6542447fb9c67ec0u, /* around */
    0x7d173d4a93b842f8u, /* sdpa backward q */
    0x92ab2abd7cfa71feu, /* sdpa backward k */
    0xe2f87f8e67ad0650u, /* sdpa backward v */
    0xe505150c5db71089u, /* adamw */
    0xeb58986866ecf4b8u, /* sgd */
    0x027ed4efb015b135u, /* global norm */
    0x92b92389099a6e90u, /* cross entropy */
    0xf9be39d97b4a57b6u, /* cross entropy head */
    0x8450aa285342ec3bu, /* gemm backward x */
    0x939718157f624373u, /* gemm backward w */
    0x4b7cddd5bf5bf2f9u, /* gemm backward bias */
    0x393a32ebce1cb1b0u, /* layer norm backward */
    0x2cd5d34537bb4463u, /* rms norm backward */
    0x37c332ead8579d70u, /* activate backward */
    0xb262c8cf5e4d9305u, /* learned position backward */
    0xc136990ba46d377fu, /* dropout */
    0x2ec3b98370494022u, /* sdpa backward with dropout */
    0x3955614336b7dd72u, /* sdpa backward of tables */
    0x395a41e330cd51eau, /* merge backward */
    0xf8b1c8231b795035u, /* convolve backward */
    0xfcad3e7dcaa2b9d5u, /* features backward, powers */
    0x85e49ae41bfbf65au, /* features backward, waves */
    0xa0714aba36e55222u, /* features backward, elu */
    0x7cc35dbca51784c6u, /* linear backward, sum */
    0xdb45ad3580c9fca0u, /* linear backward, gated */
    0x5f797ee8f0d1067eu, /* linear backward, delta */
    0x54204bc5cab43f52u, /* recurrent backward, gla */
    0x09b04b98be357deau, /* pinv backward */
    0xa9cceda1e1df7863u, /* recurrent backward, kda */
    0x08b3c0e2d9e363abu, /* depthwise backward */
    0xa2cff353438556a6u, /* pool backward */
    0x3ada97d21cd14517u, /* feed forward backward */
    0x1c1c4a53356b788fu, /* multihead backward */
    0x2ccdfc4a8a1cd055u, /* decoder backward */
    0x0b92a7bb5cc65f0bu, /* reversible backward */
    0x83d6a27719b75b41u, /* edges backward */
    0x37d11c18fd731166u, /* longformer backward */
    0xa108efe30860607du, /* relu backward, normalised */
    0x1f968a96a17ee9e7u, /* relu backward, squared */
    0x7b77d99dbdef1787u, /* relu backward, gated */
    0x6113ca6c7364e032u, /* recurrent backward, mlstm */
    0x96763b194fdcda2bu, /* recurrent backward, levels */
    0xfe79a0604269c382u, /* gemm backward, softcap */
    0x2d76c13118abed7eu, /* talking backward */
};
