/* smiles.h owns reaction SMILES, as in CC(=O)O.OCC>>CC(=O)OCC: text to tokens, atoms and bonds, and the
 * way back with a number on each atom.
 *
 * Tokens are those that the reaction models of Schwaller et al. 2021 (doi 10.1126/sciadv.abe4166) were
 * trained on: a bracket atom, Br, Cl, B C N O S P F I b c n o s p, %nn, >> and single characters. A ~
 * bonds the pieces of one salt, -> and <- are dative bonds. Nothing is normalised: what a chemistry
 * toolkit would rewrite (aromaticity, the order of atoms) stays as the text has it.
 * Functions return null, or a sentence that says what went wrong and lives as long as the struct. */
#ifndef EXAMPLES_SMILES_H
#define EXAMPLES_SMILES_H

#include <ctype.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  SMILES_MAX_LENGTH = 1 << 14, /* of a reaction; far beyond what models read */
  SMILES_SHOWN = 40            /* bytes of a text that an error quotes */
};

typedef struct smiles_token {
  int at, length; /* in the text */
  int atom;       /* its number, -1 for all but atoms */
} smiles_token;

typedef struct smiles_atom {
  int token;
  int symbol, symbol_length; /* of its element, in the text */
  int element;               /* 1..118, 0 for * */
  int aromatic;              /* a small letter */
  int bracket;               /* in brackets, which tell its hydrogens */
  int hydrogens;             /* that are no atoms of the text */
  int halves_;               /* its bonds so far; a single one is 2, an aromatic one 3 */
} smiles_atom;

typedef struct smiles {
  char *text;
  smiles_token *tokens;
  smiles_atom *atoms; /* left of >> first */
  int (*bonds)[2];    /* atoms */
  int token_count, atom_count, bond_count;
  int left; /* atoms before >> */
  char error[160];
} smiles;

static const char *smiles_fail_(smiles *s, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(s->error, sizeof s->error, format, arguments);
  va_end(arguments);
  return s->error;
}

/* What is wrong at a token; characters count from 1. */
static const char *smiles_bad_(smiles *s, int token, const char *what) {
  const smiles_token *t = &s->tokens[token];
  const int shown = t->length < SMILES_SHOWN ? t->length : SMILES_SHOWN;
  return smiles_fail_(s, "at character %d, '%.*s': %s", t->at + 1, shown, s->text + t->at, what);
}

/* ---- tokens */

/* Bytes of the token that begins here; 0 if none does. */
static int smiles_token_length_(const char *at) {
  if (*at == '[') {
    const char *close = strchr(at, ']');
    return close && close > at + 1 ? (int)(close - at + 1) : 0;
  }
  if (!strncmp(at, "Br", 2) || !strncmp(at, "Cl", 2) || !strncmp(at, ">>", 2)) return 2;
  if (*at == '%') return isdigit((unsigned char)at[1]) && isdigit((unsigned char)at[2]) ? 3 : 0;
  return *at && strchr("BCNOSPFIbcnosp().=#-+\\/:~@?>*$0123456789", *at) ? 1 : 0;
}

static const char *smiles_split_(smiles *s) {
  int at = 0;
  while (s->text[at]) {
    if (!strncmp(s->text + at, "<-", 2)) at++; /* no token; the bond's parser looks back */
    const int length = smiles_token_length_(s->text + at);
    const unsigned char c = (unsigned char)s->text[at];
    if (!length && c == '[')
      return smiles_fail_(s, "at character %d: these brackets are empty or not closed", at + 1);
    if (!length && isprint(c))
      return smiles_fail_(s, "at character %d, '%c': no part of SMILES begins so", at + 1, c);
    if (!length) return smiles_fail_(s, "at character %d: a byte that SMILES has not", at + 1);
    s->tokens[s->token_count++] = (smiles_token){at, length, -1};
    at += length;
  }
  return NULL;
}

/* ---- atoms */

/* The atomic number of the symbol at *at, of at most `room` letters, which *at moves behind; -1 if there is
 * none. */
static int smiles_element_(const char **at, int room, int *aromatic) {
  static const char symbols[] =
      "H HeLiBeB C N O F NeNaMgAlSiP S ClArK CaScTiV CrMnFeCoNiCuZnGaGeAsSeBrKrRbSrY "
      "ZrNbMoTcRuRhPdAg"
      "CdInSnSbTeI XeCsBaLaCePrNdPmSmEuGdTbDyHoErTmYbLuHfTaW ReOsIrPtAuHgTlPbBiPoAtRnFrRaAcThPaU "
      "NpPu"
      "AmCmBkCfEsFmMdNoLrRfDbSgBhHsMtDsRgCnNhFlMcLvTsOg";
  static const char *const small[] = {"se", "te", "as", "si", "b", "c", "n", "o", "s", "p"};
  const char *s = *at;
  char name[2] = {*s, ' '};
  *aromatic = 0;
  if (*s == '*') return (*at)++, 0;
  if (islower((unsigned char)*s)) {
    size_t i = 0, count = sizeof small / sizeof *small;
    while (i < count && strncmp(s, small[i], strlen(small[i])) != 0) i++;
    if (i == count) return -1;
    *aromatic = 1;
    name[0] = (char)toupper((unsigned char)*s);
    if (small[i][1]) name[1] = small[i][1];
  } else if (room > 1 && islower((unsigned char)s[1])) {
    name[1] = s[1];
  }
  for (int two = name[1] != ' '; two >= 0; two--) { /* [CoH] is cobalt, [Cl-] chlorine */
    for (int i = 0; symbols[2 * i]; i++)
      if (symbols[2 * i] == name[0] && symbols[2 * i + 1] == name[1]) {
        *at += 1 + two;
        return i + 1;
      }
    name[1] = ' ';
  }
  return -1;
}

static void smiles_symbol_(const smiles *s, const char **at, int room, smiles_atom *atom) {
  atom->symbol = (int)(*at - s->text);
  atom->element = smiles_element_(at, room, &atom->aromatic);
  atom->symbol_length = (int)(*at - s->text) - atom->symbol;
}

static int smiles_digits_(const char **at, int otherwise) {
  int n = otherwise, digits = 0;
  for (; isdigit((unsigned char)**at); (*at)++, digits++)
    n = digits < 5 ? (digits ? 10 * n : 0) + (**at - '0') : n;
  return n;
}

/* [isotope symbol chirality hydrogens charge] */
static const char *smiles_bracket_(smiles *s, int token, smiles_atom *atom) {
  const char *at = s->text + s->tokens[token].at + 1;
  smiles_digits_(&at, 0);
  atom->bracket = 1;
  smiles_symbol_(s, &at, 2, atom);
  if (atom->element < 0) return smiles_bad_(s, token, "the brackets hold no element");
  if (*at == '@') { /* @ @@ @SP1 @OH12 ... */
    at++;
    if (*at == '@') {
      at++;
    } else if (isupper((unsigned char)at[0]) && isupper((unsigned char)at[1])) {
      if (!strchr("TASO", at[0]) || !strchr("HLPB", at[1]))
        return smiles_bad_(s, token, "no such chirality");
      at += 2;
      smiles_digits_(&at, 0);
    }
  }
  if (*at == 'H') {
    at++;
    atom->hydrogens = smiles_digits_(&at, 1);
  }
  if (*at == '+' || *at == '-') {
    const char sign = *at++;
    while (*at == sign) at++;
    smiles_digits_(&at, 0);
  }
  if (*at == ':')
    return smiles_bad_(s, token, "it has a map number already, which must be removed");
  if (*at != ']') return smiles_bad_(s, token, "the brackets hold more than an atom");
  return NULL;
}

/* The hydrogens of an atom without brackets fill up the first of the element's valences that its bonds
 * do not exceed; of an aromatic one only the lowest counts. */
static int smiles_hydrogens_(const smiles_atom *atom) {
  static const struct {
    int element, valence[3];
  } known[] = {{5, {3}},     {6, {4}},        {7, {3}},  {8, {2}},  {9, {1}},
               {15, {3, 5}}, {16, {2, 4, 6}}, {17, {1}}, {35, {1}}, {53, {1, 3, 5}}};
  const int bonds = (atom->halves_ + 1) / 2;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    for (int v = 0; known[i].element == atom->element && v < (atom->aromatic ? 1 : 3); v++)
      if (known[i].valence[v] >= bonds) return known[i].valence[v] - bonds;
  return 0;
}

/* ---- bonds */

typedef struct smiles_ring_ {
  int atom; /* -1: no ring bond of this number is open */
  char bond;
  int token;
} smiles_ring_;

typedef struct smiles_parser_ {
  smiles *s;
  int last;   /* the atom that the next one is bonded to, -1 at the start of a molecule */
  char bond;  /* the symbol before the next atom, 0 = none; > and < are dative bonds */
  int *open;  /* atoms before an open ( */
  int depth;  /* how many are open */
  int opened; /* the token before was a ( */
  smiles_ring_ rings[100];
  int open_rings;
} smiles_parser_;

static const char *smiles_join_(smiles_parser_ *p, int token, int a, int b, char bond) {
  smiles *s = p->s;
  smiles_atom *x = &s->atoms[a], *y = &s->atoms[b];
  if (a == b) return smiles_bad_(s, token, "an atom would be bonded to itself");
  for (int i = 0; i < s->bond_count; i++)
    if ((s->bonds[i][0] == a && s->bonds[i][1] == b) ||
        (s->bonds[i][0] == b && s->bonds[i][1] == a))
      return smiles_bad_(s, token, "two atoms would be bonded twice");
  s->bonds[s->bond_count][0] = a;
  s->bonds[s->bond_count++][1] = b;
  const int halves = bond == '='                                            ? 4
                     : bond == '#'                                          ? 6
                     : bond == '$'                                          ? 8
                     : bond == '~'                                          ? 0
                     : bond == ':' || (!bond && x->aromatic && y->aromatic) ? 3
                                                                            : 2;
  x->halves_ += bond == '>' ? 0 : halves; /* a dative bond takes nothing from its donor */
  y->halves_ += bond == '<' ? 0 : halves;
  return NULL;
}

static const char *smiles_atom_(smiles_parser_ *p, int token) {
  smiles *s = p->s;
  const smiles_token *t = &s->tokens[token];
  smiles_atom *atom = &s->atoms[s->atom_count];
  *atom = (smiles_atom){.token = token};
  const char *at = s->text + t->at;
  if (*at == '[') {
    if (smiles_bracket_(s, token, atom)) return s->error;
  } else {
    smiles_symbol_(s, &at, t->length, atom);
  }
  s->tokens[token].atom = s->atom_count++;
  if (p->last >= 0 && smiles_join_(p, token, p->last, s->atom_count - 1, p->bond)) return s->error;
  p->last = s->atom_count - 1;
  p->bond = 0;
  return NULL;
}

/* The same number opens a ring bond and closes it. */
static const char *smiles_closure_(smiles_parser_ *p, int token) {
  smiles *s = p->s;
  const char *at = s->text + s->tokens[token].at;
  smiles_ring_ *ring = &p->rings[*at == '%' ? 10 * (at[1] - '0') + at[2] - '0' : *at - '0'];
  if (p->last < 0) return smiles_bad_(s, token, "a ring bond without an atom before it");
  const char bond = p->bond;
  p->bond = 0;
  if (ring->atom < 0) {
    *ring = (smiles_ring_){p->last, bond, token};
    p->open_rings++;
    return NULL;
  }
  const char *turns = "-/\\"; /* single bonds all */
  if (bond && ring->bond && bond != ring->bond &&
      !(strchr(turns, bond) && strchr(turns, ring->bond)))
    return smiles_bad_(s, token, "the ring bond has another symbol at its other end");
  const int first = ring->atom;
  ring->atom = -1;
  p->open_rings--;
  return smiles_join_(p, token, first, p->last, bond ? bond : ring->bond);
}

static const char *smiles_bond_(smiles_parser_ *p, int token) {
  smiles *s = p->s;
  const smiles_token *t = &s->tokens[token];
  const char c = s->text[t->at];
  if (c == '>' && p->bond == '-' && t->at && s->text[t->at - 1] == '-') {
    p->bond = '>';
    return NULL;
  }
  if (c == '>') return smiles_bad_(s, token, "agents between two > belong to the left: A.B>>C");
  if (p->bond) return smiles_bad_(s, token, "a bond after a bond");
  if (p->last < 0) return smiles_bad_(s, token, "a bond without an atom before it");
  p->bond = c == '-' && t->at && s->text[t->at - 1] == '<' ? '<' : c;
  return NULL;
}

/* A molecule ends before this token, or with the text. */
static const char *smiles_end_(smiles_parser_ *p, int token) {
  smiles *s = p->s;
  const int last = token < s->token_count ? token : s->token_count - 1;
  if (p->last < 0) return smiles_bad_(s, last, "there is no molecule on one side of it");
  if (p->bond) return smiles_bad_(s, token - 1, "a bond without an atom behind it");
  if (p->depth) return smiles_bad_(s, last, "a molecule ends here before its ( is closed");
  for (int i = 0; p->open_rings && i < 100; i++)
    if (p->rings[i].atom >= 0)
      return smiles_bad_(s, p->rings[i].token, "the ring bond is not closed within its molecule");
  p->last = -1;
  return NULL;
}

static const char *smiles_part_(smiles_parser_ *p, int token) {
  smiles *s = p->s;
  const char *at = s->text + s->tokens[token].at;
  const int opened = p->opened;
  p->opened = 0;
  if (isalpha((unsigned char)*at) || *at == '[' || *at == '*') return smiles_atom_(p, token);
  if (isdigit((unsigned char)*at) || *at == '%') {
    if (opened) return smiles_bad_(s, token, "an atom must follow a (");
    return smiles_closure_(p, token);
  }
  if (*at == '.') return smiles_end_(p, token);
  if (!strncmp(at, ">>", 2)) {
    if (s->left) return smiles_bad_(s, token, "there is another >> before it");
    s->left = s->atom_count;
    return smiles_end_(p, token);
  }
  if (*at == '(') {
    if (p->last < 0 || p->bond || opened) return smiles_bad_(s, token, "an atom must precede a (");
    p->open[p->depth++] = p->last;
    p->opened = 1;
    return NULL;
  }
  if (*at == ')') {
    if (!p->depth) return smiles_bad_(s, token, "there is no ( for it");
    if (opened || p->bond) return smiles_bad_(s, token, "an atom must precede a )");
    p->last = p->open[--p->depth];
    return NULL;
  }
  if (strchr("-=#$:/\\~>", *at)) {
    p->opened = opened; /* so that (=) is seen */
    return smiles_bond_(p, token);
  }
  return smiles_bad_(s, token, "it belongs into brackets");
}

static const char *smiles_parse_(smiles *s) {
  smiles_parser_ p = {.s = s, .last = -1};
  p.open = malloc(((size_t)s->token_count + 1) * sizeof *p.open);
  if (!p.open) return smiles_fail_(s, "out of memory");
  for (int i = 0; i < 100; i++) p.rings[i].atom = -1;
  const char *error = s->token_count ? NULL : smiles_fail_(s, "it is empty");
  for (int i = 0; i < s->token_count && !error; i++) error = smiles_part_(&p, i);
  if (!error && !s->left)
    error = smiles_fail_(s, "it has no >> between what goes in and comes out");
  if (!error) error = smiles_end_(&p, s->token_count);
  for (int i = 0; i < s->atom_count && !error; i++)
    if (!s->atoms[i].bracket) s->atoms[i].hydrogens = smiles_hydrogens_(&s->atoms[i]);
  free(p.open);
  return error;
}

static void smiles_free(smiles *s) {
  free(s->text);
  free(s->tokens);
  free(s->atoms);
  free(s->bonds);
  s->text = NULL;
  s->tokens = NULL;
  s->atoms = NULL;
  s->bonds = NULL;
}

/* Reads a reaction. After an error there is nothing to release. */
static const char *smiles_read(smiles *s, const char *text) {
  memset(s, 0, sizeof *s);
  const size_t length = strlen(text);
  if (length > SMILES_MAX_LENGTH)
    return smiles_fail_(s, "it has %zu characters; %d can be read", length, SMILES_MAX_LENGTH);
  s->text = malloc(length + 1);
  s->tokens = malloc((length + 1) * sizeof *s->tokens);
  s->atoms = malloc((length + 1) * sizeof *s->atoms);
  s->bonds = malloc((length + 1) * sizeof *s->bonds);
  const char *error = NULL;
  if (!s->text || !s->tokens || !s->atoms || !s->bonds) error = smiles_fail_(s, "out of memory");
  if (!error) {
    memcpy(s->text, text, length + 1);
    error = smiles_split_(s);
  }
  if (!error) error = smiles_parse_(s);
  if (error) smiles_free(s);
  return error;
}

/* Prints the reaction with number[i] on atom i; an atom whose number is 0 stays as it is. */
static void smiles_print(const smiles *s, const int *number, FILE *out) {
  int at = 0;
  for (int i = 0; i < s->atom_count; i++) {
    const smiles_atom *atom = &s->atoms[i];
    const smiles_token *t = &s->tokens[atom->token];
    if (!number[i]) continue;
    fprintf(out, "%.*s", t->at - at, s->text + at); /* what stands between */
    at = t->at + t->length;
    if (atom->bracket) {
      fprintf(out, "%.*s", t->length - 1, s->text + t->at);
    } else {
      fprintf(out, "[%.*s", t->length, s->text + t->at);
      if (atom->hydrogens) fprintf(out, "H");
      if (atom->hydrogens > 1) fprintf(out, "%d", atom->hydrogens);
    }
    fprintf(out, ":%d]", number[i]);
  }
  fprintf(out, "%s", s->text + at);
}

#endif
