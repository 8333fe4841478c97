/* replay.c owns the main program that runs files through the fuzz target, for compilers without
 * libFuzzer. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv) {
  for (int i = 1; i < argc; i++) {
    static uint8_t bytes[1 << 16];
    FILE *file = fopen(argv[i], "rb");
    if (!file) {
      perror(argv[i]);
      return 1;
    }
    size_t size = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    /* on the heap and exact, so that reading past the end shows */
    uint8_t *data = (uint8_t *)malloc(size + !size);
    if (!data) return 1;
    for (size_t k = 0; k < size; k++) data[k] = bytes[k];
    fprintf(stderr, "%s\n", argv[i]);
    LLVMFuzzerTestOneInput(data, size);
    free(data);
  }
  printf("replay: %d inputs\n", argc - 1);
  return argc < 2;
}
