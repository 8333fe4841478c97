/* mend.h: damaged bytes of schedules (mend.c). */

#ifndef FUZZ_MEND_H
#define FUZZ_MEND_H

#include <stddef.h>
#include <stdint.h>

/* Makes the counts in the header those of the tiles, without which no damage to tiles is accepted.
 * Counts as the library does, by its own functions. */
void fuzz_mend(uint8_t *bytes, size_t size);

/* Where header, tiles, runs and keys begin. */
void fuzz_sections(const void *bytes, int64_t section[4]);

#endif
