/* gallery.c owns docs/gallery: it builds one schedule for each constructor of api/calls/pattern.h and for
 * some compositions, draws it, and writes README.md, which shows all with the code that made them.
 *
 * Queries run downwards, keys to the right. The query's own position is drawn darker.
 *
 * Usage: gallery FOLDER; `make gallery` writes docs/gallery. */
#include "attn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "png.h"

/* What a picture shows: each head's queries x keys, and for grids also what one query sees of the
 * grid that its keys form, `fold` keys a row. */
typedef struct shape {
  int64_t heads, queries, keys, fold, query;
} shape;

#define SQUARE(n) ((shape){1, n, n, 0, 0})
#define HEADS(h, n) ((shape){h, n, n, 0, 0})
#define GRID(height, width, y, x) \
  ((shape){1, (height) * (width), (height) * (width), width, (y) * (width) + (x)})

enum { PAPER, LINE, PAIR, OWN, MARK, COLOURS };
static const uint8_t palette[COLOURS][3] = {
    {255, 255, 255}, {215, 215, 215}, {74, 134, 194}, {20, 62, 114}, {222, 110, 40}};

static const char *folder;
static FILE *page;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "gallery: %s: %s\n", what, why ? why : "");
  exit(1);
}

/* ---- pictures ---- */

static uint8_t canvas[640 * 480];
static int64_t canvas_width, canvas_height;

/* Where cell n of a panel begins: a line of one pixel before every 16th cell, and one at the end. */
static int64_t cell(int64_t n, int64_t scale) { return n * scale + n / 16 + 1; }
static int64_t panel_size(int64_t n, int64_t scale) { return cell(n - 1, scale) + scale + 1; }

static void panel(int64_t left, int64_t rows, int64_t columns, int64_t scale,
                  const uint8_t *cells) {
  int64_t height = panel_size(rows, scale), width = panel_size(columns, scale);
  for (int64_t y = 0; y < height; y++)
    memset(canvas + y * canvas_width + left, LINE, (size_t)width);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++)
      for (int64_t y = cell(r, scale); y < cell(r, scale) + scale; y++)
        memset(canvas + y * canvas_width + left + cell(c, scale), cells[r * columns + c],
               (size_t)scale);
}

/* Draws the schedule: one panel per head, and the folded row of one query. */
static void draw(const char *path, const attn_schedule *schedule, shape s, int64_t q_off) {
  static uint8_t cells[144 * 144];
  static const int64_t room[] = {0, 288, 192, 128, 128}; /* pixels a panel, by their number */
  const int64_t most = s.queries > s.keys ? s.queries : s.keys;
  const int64_t scale = room[s.heads] / most, gap = 12;
  const int64_t width = panel_size(s.keys, scale), height = panel_size(s.queries, scale);
  const int64_t fold_scale = s.fold ? 144 / s.fold : 0;
  canvas_width = s.heads * (width + gap) - gap;
  if (s.fold) canvas_width += gap + panel_size(s.fold, fold_scale);
  canvas_height = height;
  if (canvas_width * canvas_height > (int64_t)sizeof canvas) fail(path, "too large");
  memset(canvas, PAPER, sizeof canvas);
  for (int64_t h = 0; h < s.heads; h++) {
    attn_status status = attn_pattern_render(cells, s.keys, s.queries, s.keys, schedule, h);
    if (status != ATTN_OK) fail(path, attn_status_string(status));
    for (int64_t i = 0; i < s.queries; i++)
      for (int64_t j = 0; j < s.keys; j++) {
        uint8_t *c = &cells[i * s.keys + j];
        *c = *c == 0 ? PAPER : j == i + q_off ? OWN : PAIR;
      }
    panel(h * (width + gap), s.queries, s.keys, scale, cells);
  }
  if (s.fold) {
    uint8_t *row = cells + s.query * s.keys;
    row[s.query] = MARK;
    panel(width + gap, s.keys / s.fold, s.fold, fold_scale, row);
  }
  if (png_write(path, canvas, (uint32_t)canvas_width, (uint32_t)canvas_height, palette[0], COLOURS))
    fail(path, "cannot be written");
}

/* ---- the page ---- */

/* Text as HTML; a statement begins a new line. */
static void print_escaped(const char *text) {
  for (; *text; text++) {
    if (*text == '<')
      fputs("&lt;", page);
    else if (*text == '>')
      fputs("&gt;", page);
    else if (*text == '&')
      fputs("&amp;", page);
    else if (text[0] == ' ' && text[-1] == ';')
      fputc('\n', page);
    else
      fputc(*text, page);
  }
}

static int rows_open;

static void end_section(void) {
  if (rows_open) fputs("</table>\n", page);
  rows_open = 0;
}

static void section(const char *title, const char *text) {
  end_section();
  fprintf(page, "\n## %s\n\n%s\n", title, text);
}

static void picture(const char *name, const char *title, const char *formula, shape s,
                    const attn_pattern *p, const char *code) {
  attn_schedule schedule;
  attn_schedule_info info;
  attn_ctx ctx = {0};
  attn_status status = attn_schedule_build(&schedule, p, s.heads, s.queries, s.keys, NULL, &ctx);
  if (status != ATTN_OK) fail(name, ctx.reason);
  status = attn_schedule_describe(&info, &schedule);
  if (status != ATTN_OK) fail(name, attn_status_string(status));
  char path[4096];
  if (snprintf(path, sizeof path, "%s/%s.png", folder, name) >= (int)sizeof path)
    fail(folder, "the name is too long");
  draw(path, &schedule, s, info.q_off);
  attn_schedule_free(&schedule);

  if (!rows_open) fputs("\n<table>\n", page);
  rows_open = 1;
  fprintf(page, "<tr><td><img src=\"%s.png\" alt=\"%s\"></td><td><b>%s</b><br>\n", name, title,
          title);
  print_escaped(formula);
  fputs("\n<pre>", page);
  print_escaped(code);
  fputs(";</pre>\n", page);
  if (s.heads > 1) fprintf(page, "%d heads, ", (int)s.heads);
  int64_t all = s.heads * s.queries * s.keys, promille = (2000 * info.pairs + all) / (2 * all);
  fprintf(page, "%d x %d: %d pairs, density %d.%d %%</td></tr>\n", (int)s.queries, (int)s.keys,
          (int)info.pairs, (int)(promille / 10), (int)(promille % 10));
}

/* Runs the statements, which set p, and shows them as they stand. */
#define PICTURE(name, title, formula, s, ...)           \
  do {                                                  \
    attn_pattern p;                                     \
    __VA_ARGS__;                                        \
    picture(name, title, formula, s, &p, #__VA_ARGS__); \
  } while (0)

/* ---- patterns of a user ---- */

/* The pair exists when i and j have no binary digit in common. */
static int disjoint(void *user, int64_t head, int64_t i, int64_t j) {
  (void)user, (void)head;
  return (i & j) == 0;
}

/* The bitmap, a character for 4 x 4 pairs. */
static const char *const letters[16] = {
    "                ", "                ", "                ", "                ",
    "     #   #      ", "     #   #      ", "##  ### ### ##  ", "  #  #   #  # # ",
    " ##  #   #  # # ", "# #  #   #  # # ", " ##  ##  ## # # ", "                ",
    "                ", "                ", "                ", "                "};
static uint8_t bits[64 * 8];

/* A hypercube: node i sees the nodes whose number differs from its own in one binary digit. */
static int64_t indptr[65];
static int32_t col[64 * 7];

static uint8_t checks[8 * 4];

static void fill_user_patterns(void) {
  for (int i = 0; i < 64; i++)
    for (int j = 0; j < 64; j++)
      if (letters[i / 4][j / 4] == '#') bits[8 * i + j / 8] |= (uint8_t)(1 << j % 8);
  for (int32_t i = 0; i < 64; i++) {
    int64_t n = indptr[i];
    col[n++] = i;
    for (int bit = 0; bit < 6; bit++) col[n++] = i ^ 1 << bit;
    indptr[i + 1] = n;
  }
  for (int n = 0; n < 32; n++) checks[n] = (n / 4 + n % 4) % 2 == 0;
}

/* ---- the sections, in the order of the catalogue ---- */

static void atoms(void) {
  section("C1 Global", "Chosen tokens see all and are seen by all.");
  PICTURE("global", "Global", "allowed: j in G or p in G", SQUARE(64),
          p = attn_pattern_global((int32_t[]){0, 1, 24, 47}, 4));
  PICTURE("global_columns", "Columns only", "allowed: j in G", SQUARE(64),
          p = attn_pattern_global((int32_t[]){0, 1, 24, 47}, 4);
          p.no_rows = 1);
  PICTURE("global_causal", "Causal", "(j in G or p in G) and j <= p", SQUARE(64),
          p = attn_pattern_global((int32_t[]){0, 1, 24, 47}, 4);
          p.causal = 1);

  section("C2 Band, sliding window, local", "Each query sees its neighbours.");
  PICTURE("band", "Band", "-left <= j - p <= right", SQUARE(64), p = attn_pattern_band(6, 6));
  PICTURE("band_causal", "Causal sliding window", "-left <= j - p <= 0", SQUARE(64),
          p = attn_pattern_band(15, 0));
  PICTURE("band_end", "The last 16 queries: the ends are aligned", "p = i + k_len - q_len",
          ((shape){1, 16, 64, 0, 0}), p = attn_pattern_band(15, 0));
  PICTURE("multiscale", "One radius per head", "|j - p| <= radius[h]", HEADS(3, 64),
          p = attn_pattern_multiscale((int32_t[]){2, 8, 24}, 3));
  PICTURE("causal", "Every pair, causal", "j <= p", SQUARE(64), p = attn_pattern_full();
          p.causal = 1);

  section("C3 Dilated window, strided", "A band with gaps; without bounds, residue classes.");
  PICTURE("dilated", "Dilated", "j = p + t step, -left <= t <= right", SQUARE(64),
          p = attn_pattern_dilated(4, 4, 3));
  PICTURE("strided", "Strided", "(p - j) mod stride = 0", SQUARE(64), p = attn_pattern_strided(8));
  PICTURE("strided_causal", "Strided, causal", "(p - j) mod stride = 0 and j <= p", SQUARE(64),
          p = attn_pattern_strided(8);
          p.causal = 1);

  section("C4 Random", "Drawn for each head, the same on every machine.");
  PICTURE("random", "Random keys", "count keys for each query", HEADS(2, 64),
          p = attn_pattern_random(6, 1));
  PICTURE("random_causal", "Random keys, causal", "count of the keys j <= p", SQUARE(64),
          p = attn_pattern_random(6, 1);
          p.causal = 1);
  PICTURE("random_blocks", "Random blocks", "count key blocks for each query block", HEADS(2, 64),
          p = attn_pattern_random_blocks(8, 2, 1));

  section("C5 Block local", "The sequence is cut into blocks.");
  PICTURE("blocks", "Own block", "floor(p / block) = floor(j / block)", SQUARE(64),
          p = attn_pattern_blocks(8, 0, 0));
  PICTURE("blocks_near", "And a neighbour on each side",
          "|floor(p / block) - floor(j / block)| <= 1", SQUARE(64),
          p = attn_pattern_blocks(8, 1, 1));
  PICTURE("blocks_causal", "Two blocks before, causal",
          "floor(j / block) >= floor(p / block) - 2 and j <= p", SQUARE(64),
          p = attn_pattern_blocks(8, 2, 0);
          p.causal = 1);

  section("M3 Chunks and blocks", "Causal chunks; blocks that are generated one after the other.");
  PICTURE("chunked", "Chunks", "floor(j / chunk) = floor(p / chunk) and j <= p", SQUARE(64),
          p = attn_pattern_chunked(16));
  PICTURE("block_causal", "Causal by blocks", "floor(j / block) <= floor(p / block)", SQUARE(64),
          p = attn_pattern_block_causal(8));
  PICTURE("block_diffusion", "Block diffusion: noised tokens, then clean ones",
          "own noised block and earlier clean ones; clean: up to the own block", SQUARE(64),
          p = attn_pattern_block_diffusion(4));
}

static void compounds(void) {
  section("C6 Star-Transformer", "Satellites on a ring and one relay, node 0.");
  PICTURE("ring", "Ring", "|j - i| <= width around the ring", SQUARE(64), p = attn_pattern_ring(4));
  PICTURE("star", "Star", "ring, and the relay", SQUARE(33), p = attn_pattern_star(2));

  section("C7 Longformer", "A window, dilated or not, and global tokens.");
  PICTURE("longformer", "Window and global tokens", "|j - p| <= window, or p or j in G", SQUARE(64),
          p = attn_pattern_longformer(5, 1, (int32_t[]){0, 32}, 2));
  PICTURE("longformer_dilated", "Dilated window", "j = p + t dilation, |t| <= window", SQUARE(64),
          p = attn_pattern_longformer(5, 3, (int32_t[]){0, 32}, 2));

  section("C8 ETC", "A short global input in front of the long one.");
  PICTURE("etc", "ETC", "g2g, g2l, l2g: all; l2l: |j - i| <= radius", SQUARE(64),
          p = attn_pattern_etc(8, 5));

  section("C9 BigBird", "Window, global and random, by blocks or tokens.");
  PICTURE("bigbird", "Blocks; each head draws its own",
          "first and last block, 3 blocks of window, 3 random", HEADS(2, 96),
          p = attn_pattern_bigbird(8, 1));
  PICTURE("bigbird_etc", "Extra global tokens in front", "[g tokens; blocks counted from there]",
          SQUARE(72), p = attn_pattern_bigbird_etc(8, 8, 1));
  PICTURE("bigbird_tokens", "Tokens", "|j - p| <= half, or p or j in G, or drawn", SQUARE(64),
          attn_pattern part[3];
          p = attn_pattern_bigbird_tokens(3, (int32_t[]){0, 1}, 2, 3, 1, part));

  section("C10 Sparse Transformer, strided", "The last positions, and every stride-th one.");
  PICTURE("sparse_strided", "In one head", "p - j <= stride or (p - j) mod stride = 0; j <= p",
          SQUARE(64), p = attn_pattern_sparse_strided(8, ATTN_SPARSE_MERGED));
  PICTURE("sparse_strided_heads", "By heads", "head 0: the first set, head 1: the second",
          HEADS(2, 64), p = attn_pattern_sparse_strided(8, ATTN_SPARSE_HEADS));
  PICTURE("sparse_strided_both", "Not causal", "|p - j| <= stride or (p - j) mod stride = 0",
          SQUARE(64), p = attn_pattern_sparse_strided(8, ATTN_SPARSE_MERGED);
          p.causal = 0);

  section("C11 Sparse Transformer, fixed", "The own block, and the last columns of earlier ones.");
  PICTURE("sparse_fixed", "In one head",
          "floor(p / block) = floor(j / block) or j mod block >= block - columns; j <= p",
          SQUARE(64), p = attn_pattern_sparse_fixed(8, 2, ATTN_SPARSE_MERGED));
  PICTURE("sparse_fixed_heads", "By heads", "head 0: the first set, head 1: the second",
          HEADS(2, 64), p = attn_pattern_sparse_fixed(8, 2, ATTN_SPARSE_HEADS));
  PICTURE("sparse_fixed_columns", "Each head its own columns", "sub-block h mod sub_blocks",
          HEADS(4, 64), p = attn_pattern_sparse_fixed(8, 2, ATTN_SPARSE_MERGED);
          p.sub_blocks = 4);

  section("C12 Blockwise", "Each query block sees one key block, given by a permutation.");
  PICTURE("blockwise", "Shifts, the default", "block of j = (block of i + h) mod blocks",
          HEADS(4, 64), p = attn_pattern_blockwise(4, NULL));
  PICTURE("blockwise_permutation", "Drawn permutations", "block of j = permutation[h][block of i]",
          HEADS(2, 64), int32_t permutation[16];
          (void)attn_block_permutations(permutation, 2, 8, 1);
          p = attn_pattern_blockwise(8, permutation));
}

static void images(void) {
  section("C13 Image Transformer, 1-D", "Blocks of a raster of pixels and those before them.");
  PICTURE("image_1d", "1-D local", "first of the block - before <= j <= p", SQUARE(64),
          p = attn_pattern_image_1d(16, 8));

  section("C14 Image Transformer, 2-D; neighbourhood",
          "Blocks of pixels and their flanges. Right: what one pixel (orange) sees.");
  PICTURE("image_2d", "Block order", "memory of the block, if not generated later",
          GRID(12, 12, 5, 6), p = attn_pattern_image_2d(12, 12, 4, 4, 2, 2));
  PICTURE("image_2d_raster", "Raster order", "memory of the block, if (y', x') <= (y, x)",
          GRID(12, 12, 5, 6), p = attn_pattern_image_2d(12, 12, 4, 4, 2, 2);
          p.order = ATTN_IMAGE_RASTER);
  PICTURE("image_2d_both", "No order, flanges all around", "memory of the block",
          GRID(12, 12, 5, 6), p = attn_pattern_image_2d(12, 12, 4, 4, 2, 2);
          p.bottom = 2; p.order = ATTN_IMAGE_NONE);
  PICTURE("neighbourhood", "Neighbourhood", "|y' - y| <= radius and |x' - x| <= radius",
          GRID(12, 12, 5, 6), p = attn_pattern_neighborhood(12, 12, 2));

  section(
      "M3 Neighbourhood attention over a grid",
      "Windows of a fixed size move inwards at the edges. Right: what one pixel (orange) sees.");
  PICTURE("neighbourhood_axes", "Kernel 5 x 5", "start = clip(i - 2, 0, 12 - 5) along each axis",
          GRID(12, 12, 1, 6),
          p = attn_pattern_neighborhood_axes((attn_axis[]){{12, 5, 1, 1, 0}, {12, 5, 1, 1, 0}}, 2));
  PICTURE("neighbourhood_dilated", "Kernel 3, dilation 3", "the same among places of one residue",
          GRID(12, 12, 5, 6),
          p = attn_pattern_neighborhood_axes((attn_axis[]){{12, 3, 1, 3, 0}, {12, 3, 1, 3, 0}}, 2));
  PICTURE("neighbourhood_strided", "Kernel 6, stride 3", "groups of 3 share a window",
          GRID(12, 12, 5, 6),
          p = attn_pattern_neighborhood_axes((attn_axis[]){{12, 6, 3, 1, 0}, {12, 6, 3, 1, 0}}, 2));
  PICTURE("neighbourhood_causal", "The first axis causal", "max(i - 4, 0) .. i along it",
          GRID(12, 12, 5, 6),
          p = attn_pattern_neighborhood_axes((attn_axis[]){{12, 5, 1, 1, 1}, {12, 5, 1, 1, 0}}, 2));

  section("C15 Axial", "Lines of a grid. Right: what one pixel (orange) sees.");
  PICTURE("axial_columns", "Axis 0", "x' = x", GRID(12, 12, 5, 6),
          p = attn_pattern_axial((int32_t[]){12, 12}, 2, 0));
  PICTURE("axial_rows", "Axis 1", "y' = y", GRID(12, 12, 5, 6),
          p = attn_pattern_axial((int32_t[]){12, 12}, 2, 1));
  PICTURE("axial_union", "All axes in one softmax", "x' = x or y' = y", GRID(12, 12, 5, 6),
          p = attn_pattern_axial((int32_t[]){12, 12}, 2, -1));
}

static void levels(void) {
  section("C16 BP-Transformer", "Tokens first, then the spans of 2, 4, 8 .. tokens.");
  PICTURE("tree", "Near tokens and ever coarser spans",
          "k nodes a level and side; spans: their tokens", SQUARE(63),
          p = attn_pattern_tree(32, 2));
  PICTURE("tree_causal", "Causal", "only spans that end at p or before", SQUARE(63),
          p = attn_pattern_tree(32, 2);
          p.causal = 1);

  section("C17 Segments", "Each segment for itself.");
  PICTURE("segments", "Segments", "segment of j = segment of i", SQUARE(64),
          p = attn_pattern_segments((int32_t[]){0, 9, 25, 30, 48, 64}, 5));

  section("C18 Levels",
          "Tokens inside sentences, then sentences inside paragraphs: a call a level.");
  PICTURE("level_0", "Tokens", "sentence of j = sentence of i", SQUARE(64),
          p = attn_pattern_segments((int32_t[]){0, 5, 12, 17, 26, 33, 36, 45, 51, 58, 64}, 10));
  PICTURE("level_1", "The ten sentences", "paragraph of j = paragraph of i", SQUARE(10),
          p = attn_pattern_segments((int32_t[]){0, 3, 7, 10}, 3));
}

static void users(void) {
  section("C19 Your own", "Functions, bits and lists.");
  PICTURE("predicate", "A function of yours", "allowed: (i & j) = 0", SQUARE(64),
          p = attn_pattern_predicate(disjoint, NULL, NULL));
  PICTURE("bitmap", "Bits", "bit j of row i", SQUARE(64), p = attn_pattern_bitmap(bits, 8));
  PICTURE("csr", "Lists (a hypercube)", "j = i, or i with one binary digit changed", SQUARE(64),
          p = attn_pattern_csr(indptr, col, 64 * 7));
  PICTURE("block_mask", "A byte for each block", "mask[floor(i / 8)][floor(j / 16)] != 0",
          SQUARE(64), p = attn_pattern_block_mask(checks, 8, 16));

  section("Algebra", "Patterns are sets; sets compose.");
  PICTURE("union", "Union", "band or dilated or global", SQUARE(64),
          attn_pattern part[] = {attn_pattern_band(3, 3), attn_pattern_dilated(5, 5, 5),
                                 attn_pattern_global((int32_t[]){0}, 1)};
          p = attn_pattern_union(part, 3));
  PICTURE("intersect", "Intersection", "band and strided", SQUARE(64),
          attn_pattern part[] = {attn_pattern_band(24, 8), attn_pattern_strided(3)};
          p = attn_pattern_intersect(part, 2));
  PICTURE("diff", "Difference", "band without own block", SQUARE(64),
          attn_pattern part[] = {attn_pattern_band(12, 12), attn_pattern_blocks(8, 0, 0)};
          p = attn_pattern_diff(part));
  PICTURE("complement", "Complement", "not band", SQUARE(64),
          attn_pattern part = attn_pattern_band(12, 12);
          p = attn_pattern_complement(&part));
  PICTURE("transpose", "Transpose", "(j, i) in the pattern", SQUARE(64),
          attn_pattern part = attn_pattern_sparse_fixed(8, 2, ATTN_SPARSE_MERGED);
          p = attn_pattern_transpose(&part));
  PICTURE("union_causal", "A union, causal", "(own block or strided) and j <= p", SQUARE(64),
          attn_pattern part[] = {attn_pattern_blocks(8, 0, 0), attn_pattern_strided(5)};
          p = attn_pattern_union(part, 2); p.causal = 1);
  PICTURE("per_head", "One pattern per head", "head h: parts[h]", HEADS(4, 64),
          attn_pattern part[] = {attn_pattern_band(4, 4), attn_pattern_strided(6),
                                 attn_pattern_blocks(16, 0, 0),
                                 attn_pattern_global((int32_t[]){0, 31}, 2)};
          p = attn_pattern_per_head(part, 4));
}

int main(int argc, char **argv) {
  if (argc != 2) fail("usage", "gallery FOLDER");
  folder = argv[1];
  char path[4096];
  if (snprintf(path, sizeof path, "%s/README.md", folder) >= (int)sizeof path)
    fail(folder, "the name is too long");
  page = fopen(path, "w");
  if (!page) fail(path, "cannot be written");
  fputs(
      "# Gallery of patterns\n\n"
      "Which (query, key) pairs a pattern lets exist: queries downwards, keys to the right, a "
      "line\n"
      "every 16, the query's own position dark. Query i sits at key position p = i + k_len - "
      "q_len.\n"
      "Under each picture's name: its set, the code that made it (`p` is then built by\n"
      "`attn_schedule_build` and drawn by `attn_pattern_render`), its size. Written by `make "
      "gallery`;\n"
      "papers are in [attn/api/calls/pattern.h](../../attn/api/calls/pattern.h) and the\n"
      "[catalogue](../catalogue.md).\n",
      page);
  fill_user_patterns();
  atoms();
  compounds();
  images();
  levels();
  users();
  end_section();
  int failed = ferror(page);
  if (fclose(page) || failed) fail(path, "cannot be written");
  return 0;
}
