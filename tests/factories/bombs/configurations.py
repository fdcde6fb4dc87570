"""Configurations: for `lint`, and for `--config` and `--budget`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.factories.bombs.cases import as_json, count, file, repeated

CONFIGS: dict[str, Callable[[float], bytes | Iterable[bytes]]] = {
    "deep.json": lambda s: b'{"a":' * 10_000,
    "deep_lists.json": lambda s: b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "commas.json": lambda s: b'{"a":1' + b"," * 500_000 + b"}",
    "quotes.json": lambda s: b'{"a":"' + b'\\"' * 400_000,
    "comments.json": lambda s: b'{"a":1}' + b"/*" * 400_000,
    "slashes.json": lambda s: b'{"a":1}' + b"/" * 900_000,
    "keys.json": lambda s: as_json({f"key{i}": i for i in range(count(60_000, s))}),
    "sections.json": lambda s: as_json(
        {"zero_optimization": {f"stag{i}": i for i in range(count(40_000, s))}}
    ),
    "nested.json": lambda s: as_json(
        {f"s{i}": {f"k{j}": {} for j in range(100)} for i in range(count(800, s))}
    ),
    "twice.json": lambda s: b'{"a":1,"a":2}',
    "digits.json": lambda s: b'{"train_batch_size":' + b"9" * 900_000 + b"}",
    "words.json": lambda s: b'{"a":' + b"x" * 900_000 + b"}",
    "escapes.json": lambda s: b'{"\\u001b[31m\\u202e":"\\ud800"}',
    "nul.json": lambda s: b"{" + b"\0" * 900_000 + b"}",
    "large.json": lambda s: repeated(b"{", b'"a":1,', count(10_000_000, s)),
    "list.json": lambda s: b"[" + b"1," * 400_000 + b"1]",
    "long_list.json": lambda s: b'{"optimizer":{"params":{"betas":[' + b"1," * 400_000 + b"1]}}}",
    "bom.json": lambda s: b"\xff\xfe{\0}\0",
    "aliases.yaml": lambda s: (
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(
            b"%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n" % ((98 + i, 98 + i) + (97 + i,) * 9)
            for i in range(20)
        )
    ),
    "merges.yaml": lambda s: b"a: &a {x: 1}\n" + b"b:\n" + b"  <<: *a\n" * 10_000,
    "anchors.yaml": lambda s: b"a: &a 1\n" * 5000 + b"b: &a 2\nc: *zz\n",
    "recursive.yaml": lambda s: b"rules: &a\n  late-rank: *a\nfindings: *a\n",
    "deep.yaml": lambda s: b"rules: " + b"[" * 10_000,
    "deep_maps.yaml": lambda s: b"rules: " + b"{a: " * 10_000,
    "indent.yaml": lambda s: b"".join(b" " * i + b"a:\n" for i in range(700)),
    "dashes.yaml": lambda s: b"- " * 100_000,
    "questions.yaml": lambda s: b"? " * 100_000,
    "large.yaml": lambda s: repeated(b"rules:\n", b"  a: {b: 1}\n", count(4_000_000, s)),
    "keys.yaml": lambda s: b"".join(b"k%d: 1\n" % i for i in range(25_000)),
    "rules.yaml": lambda s: b"rules:\n" + b"".join(b"  k%d: 1\n" % i for i in range(20_000)),
    "tags.yaml": lambda s: b"a: !!python/object/apply:os.system ['touch x']\n",
    "digits.yaml": lambda s: b"every: " + b"9" * 200_000,
    "sexagesimal.yaml": lambda s: b"every: " + b"1:" * 100_000 + b"1",
    "date.yaml": lambda s: b"every: 9999-99-99\nout: 2001-01-01T99:99:99\n",
    "key_of_list.yaml": lambda s: b"[1, 2]: 3\n{a: b}: 4\n? - a\n: b\n",
    "documents.yaml": lambda s: b"--- a\n" * 30_000,
    "directives.yaml": lambda s: b"%YAML 9.9\n%TAG ! x\n--- a\n",
    "nul.yaml": lambda s: b"a: \0\n",
    "text.yaml": lambda s: b'a: "' + b"\\x1b\\u202e" * 20_000,
    "block.yaml": lambda s: b"a: |\n" + b"  x\n" * 60_000,
}
for word, content in CONFIGS.items():
    file("config", word, content)
