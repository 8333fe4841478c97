/* atom_map.h owns the way from the attention between the tokens of a reaction to its atom map: which
 * atom of the left side each atom of the product is. After Schwaller et al. 2021,
 * doi 10.1126/sciadv.abe4166.
 *
 *   s_pr = a_pr + a_rp of product atom p and reactant atom r, 0 where their elements differ
 *   f_pr = s_pr m_pr / sum_r s_pr m_pr, where m is 1 at first
 *   again and again: the largest f_pr of all decides that p is r, with confidence f_pr; then m of their
 *   neighbours' pairs is multiplied (by 90), and m of all other pairs of p or of r is 0
 *
 * It ends when all atoms are mapped or the largest f is 0. The confidence of the map is the product. */
#ifndef EXAMPLES_ATOM_MAP_H
#define EXAMPLES_ATOM_MAP_H

#include "smiles.h"

#include <math.h>

typedef struct atom_map {
  int products, reactants; /* atoms */
  double *score;           /* [products][reactants]: s */
  int *from;               /* the reactant atom of each product atom, -1 = none */
  double *sure;            /* its confidence; 1 where there is none */
  double confidence;
  double *boost_; /* [products][reactants]: m */
} atom_map;

static void atom_map_free(atom_map *map) {
  free(map->score);
  free(map->from);
  free(map->sure);
  free(map->boost_);
  memset(map, 0, sizeof *map);
}

/* The neighbours of an atom, written to `list`; their number. */
static int atom_map_neighbours_(const smiles *s, int atom, int *list) {
  int count = 0;
  for (int i = 0; i < s->bond_count; i++) {
    if (s->bonds[i][0] == atom) list[count++] = s->bonds[i][1];
    if (s->bonds[i][1] == atom) list[count++] = s->bonds[i][0];
  }
  return count;
}

/* p is r from now on. lists: room for the neighbours of both. */
static void atom_map_decide_(atom_map *map, const smiles *s, int p, int r, double multiplier,
                             int *lists) {
  const int columns = map->reactants;
  int *of_p = lists, *of_r = lists + s->atom_count;
  const int n = atom_map_neighbours_(s, p + s->left, of_p);
  const int m = atom_map_neighbours_(s, r, of_r);
  for (int i = 0; i < n; i++)
    for (int j = 0; j < m; j++) map->boost_[(of_p[i] - s->left) * columns + of_r[j]] *= multiplier;
  for (int j = 0; j < columns; j++) map->boost_[p * columns + j] = 0;
  for (int i = 0; i < map->products; i++) map->boost_[i * columns + r] = 0;
}

/* The pair with the largest f, the first of equals; f. */
static double atom_map_best_(const atom_map *map, int *p, int *r) {
  double best = -1;
  for (int i = 0; i < map->products; i++) {
    const double *score = map->score + i * map->reactants;
    const double *boost = map->boost_ + i * map->reactants;
    double sum = 0, most = 0;
    int column = 0;
    for (int j = 0; j < map->reactants; j++) {
      const double share = score[j] * boost[j];
      sum += share;
      if (share > most) most = share, column = j;
    }
    const double f = sum > 0 ? most / sum : 0;
    if (f > best) best = f, *p = i, *r = column;
  }
  return best;
}

/* attention: [n][n] of the n = token_count + 2 tokens of s between [CLS] and [SEP], row i what token i
 * attends to. Null, or why there is no map; then there is nothing to release. */
static const char *atom_map_make(atom_map *map, const smiles *s, const float *attention,
                                 double multiplier) {
  memset(map, 0, sizeof *map);
  map->products = s->atom_count - s->left;
  map->reactants = s->left;
  const int64_t n = s->token_count + 2;
  const size_t pairs = (size_t)map->products * (size_t)map->reactants;
  map->score = malloc(pairs * sizeof *map->score);
  map->boost_ = malloc(pairs * sizeof *map->boost_);
  map->from = malloc((size_t)map->products * sizeof *map->from);
  map->sure = malloc((size_t)map->products * sizeof *map->sure);
  int *lists = malloc(2 * (size_t)s->atom_count * sizeof *lists);
  if (!map->score || !map->boost_ || !map->from || !map->sure || !lists) {
    free(lists);
    atom_map_free(map);
    return "out of memory";
  }
  int finite = 1;
  for (int i = 0; i < map->products; i++) {
    const smiles_atom *p = &s->atoms[i + s->left];
    map->from[i] = -1;
    map->sure[i] = 1;
    for (int j = 0; j < map->reactants; j++) {
      const smiles_atom *r = &s->atoms[j];
      const int64_t at_p = p->token + 1, at_r = r->token + 1; /* after [CLS] */
      const float both = attention[at_p * n + at_r] + attention[at_r * n + at_p];
      finite = finite && isfinite(both);
      map->score[i * map->reactants + j] = p->element == r->element ? (double)both : 0;
      map->boost_[i * map->reactants + j] = 1;
    }
  }
  map->confidence = 1;
  for (int step = 0; step < map->products && finite; step++) {
    int p = 0, r = 0;
    const double f = atom_map_best_(map, &p, &r);
    if (f < 1e-8) break;
    map->from[p] = r;
    map->sure[p] = f;
    atom_map_decide_(map, s, p, r, multiplier, lists);
  }
  for (int i = 0; i < map->products; i++) map->confidence *= map->sure[i];
  free(lists);
  if (finite) return NULL;
  atom_map_free(map);
  return "the attention is not finite: are these weights of a model?";
}

/* Numbers to print: product atom i has i + 1, and so has the reactant atom that it is; 0 for the rest. */
static void atom_map_numbers(const atom_map *map, int *number) {
  memset(number, 0, (size_t)map->reactants * sizeof *number);
  for (int i = 0; i < map->products; i++) {
    number[map->reactants + i] = i + 1;
    if (map->from[i] >= 0) number[map->from[i]] = i + 1;
  }
}

#endif
