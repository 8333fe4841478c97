# gallery.mk owns the gallery of patterns: `make gallery` draws it anew into docs/gallery.

GALLERY_PARTS := docs/gallery/gallery.c docs/gallery/png.h

.PHONY: gallery test-gallery
build/gallery/gallery: $(GALLERY_PARTS) attn.h
	@mkdir -p $(@D)
	$(CC) -O2 -I. -o $@ $< -lm

gallery: build/gallery/gallery ## draw every pattern into docs/gallery
	build/gallery/gallery docs/gallery

test-gallery: attn.h ## check that docs/gallery is what the code draws
	CC="$(CC)" sh docs/gallery/test_gallery.sh
