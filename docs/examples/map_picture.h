/* map_picture.h owns the picture of an atom map, an SVG: product atoms downwards, those of the left side
 * to the right, a cell the darker the more the two attend to each other, the pairs of the map framed. */
#ifndef EXAMPLES_MAP_PICTURE_H
#define EXAMPLES_MAP_PICTURE_H

#include "atom_map.h"

#include <errno.h>

enum { MAP_PICTURE_CELL = 18, MAP_PICTURE_EDGE = 60, MAP_PICTURE_TOP = 96, MAP_PICTURE_GAP = 5 };

/* Text of the reaction inside an element. */
static void map_picture_text_(FILE *file, const char *text, int length) {
  for (int i = 0; i < length && text[i]; i++) {
    if (text[i] == '<')
      fputs("&lt;", file);
    else if (text[i] == '>')
      fputs("&gt;", file);
    else
      putc(text[i], file);
  }
}

/* Where each atom's row or column begins; a gap stands between molecules. */
static void map_picture_places_(const smiles *s, int *place) {
  int at = 0;
  for (int i = 0; i < s->atom_count; i++) {
    if (i == s->left)
      at = 0;
    else if (i) {
      at += MAP_PICTURE_CELL;
      for (int t = s->atoms[i - 1].token; t < s->atoms[i].token; t++)
        if (s->text[s->tokens[t].at] == '.') at += MAP_PICTURE_GAP;
    }
    place[i] = at;
  }
}

static void map_picture_label_(FILE *file, const smiles *s, int atom, int number, int x, int y,
                               int side) {
  const smiles_atom *a = &s->atoms[atom];
  fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\">", x, y, side ? "end" : "middle");
  map_picture_text_(file, s->text + a->symbol, a->symbol_length);
  if (!number)
    fputs("</text>\n", file);
  else if (side)
    fprintf(file, " <tspan class=\"n\">%d</tspan></text>\n", number);
  else
    fprintf(file, "</text><text class=\"n\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">%d</text>\n",
            x, y - 14, number);
}

static void map_picture_draw_(FILE *file, const smiles *s, const atom_map *map, const int *number,
                              const int *place) {
  const int cell = MAP_PICTURE_CELL, columns = map->reactants;
  const int wide = place[s->left - 1] + cell, high = place[s->atom_count - 1] + cell;
  const int text = 20 + (int)strlen(s->text) * 7; /* a letter of 12 pixels is about 7 wide */
  const int width = MAP_PICTURE_EDGE + wide + 20, height = MAP_PICTURE_TOP + high + 20;
  double most = 0;
  for (int i = 0; i < map->products * columns; i++) most = fmax(most, map->score[i]);
  fprintf(file,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
          "font-family=\"monospace\" font-size=\"12\">\n"
          "<style>.n{fill:#b00020;font-size:10px}</style>\n"
          "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n<text x=\"10\" y=\"20\">",
          width > text ? width : text, height);
  map_picture_text_(file, s->text, SMILES_MAX_LENGTH);
  fprintf(
      file,
      "</text>\n<text x=\"10\" y=\"40\">confidence %.4f; rows: the product's atoms, columns: the "
      "left side's</text>\n",
      map->confidence);
  for (int j = 0; j < columns; j++)
    map_picture_label_(file, s, j, number[j], MAP_PICTURE_EDGE + place[j] + cell / 2,
                       MAP_PICTURE_TOP - 6, 0);
  for (int i = 0; i < map->products; i++) {
    const int y = MAP_PICTURE_TOP + place[s->left + i];
    map_picture_label_(file, s, s->left + i, number[s->left + i], MAP_PICTURE_EDGE - 8, y + 13, 1);
    for (int j = 0; j < columns; j++) {
      const double dark = most > 0 ? sqrt(map->score[i * columns + j] / most) : 0;
      fprintf(file,
              "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"rgb(%d,%d,%d)\"%s/>\n",
              MAP_PICTURE_EDGE + place[j] + 1, y + 1, cell - 2, cell - 2, 240 - (int)(230 * dark),
              246 - (int)(230 * dark), 250 - (int)(100 * dark),
              map->from[i] == j ? " stroke=\"#b00020\" stroke-width=\"2\"" : "");
    }
  }
  fputs("</svg>\n", file);
}

/* Null, or why the picture could not be written. number: what atom_map_numbers gives. */
static const char *map_picture_write(const char *path, const smiles *s, const atom_map *map,
                                     const int *number) {
  int *place = malloc((size_t)s->atom_count * sizeof *place);
  if (!place) return "out of memory";
  FILE *file = fopen(path, "wb");
  if (!file) {
    free(place);
    return strerror(errno);
  }
  map_picture_places_(s, place);
  map_picture_draw_(file, s, map, number, place);
  free(place);
  const int failed = ferror(file);
  return fclose(file) || failed ? "the file could not be written in full" : NULL;
}

#endif
