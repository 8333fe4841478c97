/* test_json.c owns the check of json.h: what texts mean, what is refused and at which byte, and that no text,
 * however it is cut or changed, is read beyond its end (compile it with a sanitiser to see that). */
#include "json.h"

static int failures;

static void check(int good, const char *what, const char *text) {
  if (good) return;
  fprintf(stderr, "test_json: %s: %.60s\n", what, text);
  failures++;
}

static const char *parse(json_document *d, const char *text, size_t length) {
  char *copy = malloc(length + 1);
  if (!copy) exit(2);
  memcpy(copy, text, length);
  return json_parse(d, copy, length);
}

static void refuses(const char *text, const char *expected) {
  json_document d;
  const char *error = parse(&d, text, strlen(text));
  check(error && strstr(error, expected), error ? error : "was read", text);
  if (!error) json_free(&d);
}

static void number(const char *text, int whole, int64_t integer, double value) {
  json_document d;
  const char *error = parse(&d, text, strlen(text));
  check(!error, "was refused", text);
  if (error) return;
  const json *n = d.root;
  check(n->kind == JSON_NUMBER && n->whole == whole && n->integer == integer &&
            (n->number == value || (isnan(value) && isnan(n->number))),
        "is another number", text);
  json_free(&d);
}

static void string(const char *text, const char *expected, size_t length) {
  json_document d;
  const char *error = parse(&d, text, strlen(text));
  check(!error && d.root->kind == JSON_STRING && d.root->length == length &&
            !memcmp(d.root->string, expected, length + 1),
        "is another string", text);
  if (!error) json_free(&d);
}

static void check_tree(void) {
  const char *text =
      " {\"a\" : [1, -2.5e1, [] , {}], \"b\\n\": {\"a\": true}, \"c\": "
      "null,\"d\":false,\"a\":3}\r\n";
  json_document d;
  const char *error = parse(&d, text, strlen(text));
  check(!error, "was refused", text);
  if (error) return;
  const json *a = json_get(d.root, "a"), *b = json_get(d.root, "b\n"), *c = json_get(d.root, "c");
  check(d.root->kind == JSON_OBJECT && d.root->count == 5 && d.root->at == 1, "root", text);
  check(a && a->kind == JSON_ARRAY && a->count == 4 && a->at == 8 && !strcmp(a->name, "a") &&
            a->first->integer == 1 && a->first->next->number == -25 &&
            a->first->next->next->kind == JSON_ARRAY && !a->first->next->next->first &&
            a->first->next->next->next->kind == JSON_OBJECT && !a->first->name,
        "list", text);
  check(b && json_get(b, "a") && json_get(b, "a")->kind == JSON_BOOL && json_get(b, "a")->truth,
        "inner object", text);
  check(c && c->kind == JSON_NULL && json_get(d.root, "d") && !json_get(d.root, "d")->truth,
        "null and false", text);
  check(!json_get(d.root, "b") && !json_get(a, "a") && !json_get(NULL, "a"), "absent", text);
  json_free(&d);
}

/* Many values: more than a block of them, in order. */
static void check_many(void) {
  enum { N = 3000 };
  char *text = malloc(8 * N);
  size_t length = 0;
  json_document d;
  if (!text) exit(2);
  for (int i = 0; i < N; i++) length += (size_t)sprintf(text + length, "%c%d", i ? ',' : '[', i);
  text[length++] = ']';
  const char *error = json_parse(&d, text, length);
  check(!error && d.root->count == N, "many", "0, 1, ...");
  int64_t i = 0;
  if (!error)
    for (const json *n = d.root->first; n; n = n->next) check(n->integer == i++, "order", "...");
  check(i == N, "count", "...");
  json_free(&d);
}

/* Cut anywhere and with any byte changed a text is read or refused; which, a sanitiser judges. */
static void check_spoilt(void) {
  const char *text =
      "{\"n\": [0, -1.5e+3, \"\\ud83d\\ude00\\u00e9\xc3\xa9\\\\\"], \"t\": {\"x\": null}}";
  const size_t length = strlen(text);
  char spoilt[128];
  json_document d;
  for (size_t n = 0; n < length; n++) {
    const char *error = parse(&d, text, n);
    check(error != NULL, "a text that is cut was read", text);
    if (!error) json_free(&d);
    for (int byte = 0; byte < 256; byte++) {
      memcpy(spoilt, text, length + 1);
      spoilt[n] = (char)(unsigned char)byte;
      if (!parse(&d, spoilt, length)) json_free(&d);
    }
  }
}

int main(void) {
  check_tree();
  check_many();
  check_spoilt();
  number("0", 1, 0, 0);
  number("-0", 1, 0, 0);
  number("9223372036854775807", 1, INT64_MAX, 0x1p63);
  number("-9223372036854775808", 1, INT64_MIN, -0x1p63);
  number("9223372036854775808", 0, 0, 0x1p63);
  number("-9223372036854775809", 0, 0, -0x1p63);
  number("9007199254740993", 1, 9007199254740993, 9007199254740992.0);
  number("1e400", 0, 0, INFINITY);
  number("1.25E-2", 0, 0, 0.0125);
  number("-Infinity", 0, 0, -INFINITY);
  number("NaN", 0, 0, NAN);
  string("\"\"", "", 0);
  string("\"a\\u0000b\\/\\t\"", "a\0b/\t", 5);
  string("\"\\u00E9\\u20ac\\ud83d\\ude00\"", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9);
  refuses("", "at byte 0: a value must stand here");
  refuses("  ", "at byte 2: a value");
  refuses("{} {}", "at byte 3: something follows");
  refuses("[1,]", "at byte 3: a value");
  refuses("[1 2]", "at byte 3: a list must go on");
  refuses("{\"a\" 1}", "at byte 5: a name must be followed by :");
  refuses("{\"a\": 1 \"b\"}", "at byte 8: an object must go on");
  refuses("{a: 1}", "at byte 1: a string must stand here");
  refuses("{\"a\": 1,}", "at byte 8: a string");
  refuses("01", "begins with 0");
  refuses("-", "at byte 1: a value");
  refuses("+1", "at byte 0: a value");
  refuses("1.", "follow the point");
  refuses(".5", "at byte 0: a value");
  refuses("1e", "the exponent needs");
  refuses("nul", "a value must");
  refuses("truex", "something follows");
  refuses("\"a", "at byte 2: it ends within a string");
  refuses("\"a\nb\"", "at byte 2: a control character");
  refuses("\"\\x\"", "unknown escape");
  refuses("\"\\u12g4\"", "four hexadecimal");
  refuses("\"\\ud800\"", "surrogate");
  refuses("\"\\ud800\\u0041\"", "surrogate");
  refuses("\"\\udc00\"", "surrogate");
  refuses("\"\xff\"", "not UTF-8");
  refuses("\"\xc0\x80\"", "not UTF-8");
  refuses("\"\xed\xa0\x80\"", "not UTF-8");
  refuses("\"\xf4\x90\x80\x80\"", "not UTF-8");
  refuses("\"\xe2\x82\"", "not UTF-8");
  char deep[3 * JSON_MAX_DEPTH];
  memset(deep, '[', sizeof deep - 1);
  deep[sizeof deep - 1] = 0;
  refuses(deep, "nested too deeply");
  json_document d;
  const char *error = json_read(&d, "docs/absent.json");
  check(error && strstr(error, "No such file"), "an absent file", error ? error : "");
  error = json_read(&d, "docs");
  check(error && strstr(error, "directory"), "a folder", error ? error : "");
  if (!failures) puts("json: all passed");
  return failures != 0;
}
