/* words_real.c owns the words of AVX-512 as the processor has them. */
#define WORDS words_real
#include "words.h"
