# gallery.mk owns the pictures that are computed: `make gallery` draws them anew into docs/gallery, those
# of patterns and those of the pages content.md, maps.md and heads.md, and prints the numbers of the pages.

GALLERY_PAGES := content maps heads

.PHONY: gallery test-gallery content-time
build/gallery/attn.o: attn.h
	@mkdir -p $(@D)
	printf '#define ATTN_IMPLEMENTATION\n#include "attn.h"\n' | $(CC) -O2 -I. -x c -c -o $@ -

build/gallery/%: docs/gallery/%.c docs/gallery/png.h docs/gallery/photo.h build/gallery/attn.o
	$(CC) -O2 -I. -o $@ $< build/gallery/attn.o -lm

gallery: build/gallery/gallery $(GALLERY_PAGES:%=build/gallery/%) ## draw: draw docs/gallery: patterns, maps, chosen keys
	build/gallery/gallery docs/gallery
	@for page in $(GALLERY_PAGES); do build/gallery/$$page docs/gallery || exit 1; done

content-time: build/gallery/content ## measure: time attention to chosen keys on a photograph: docs/content.md
	build/gallery/content --time

test-gallery: build/impl/gcc-O2.o ## test: check that docs/gallery and the pages' numbers are what the code makes
	CC="$(CC)" IMPL=$< sh docs/gallery/test_gallery.sh
