"""Makes 200 random JSON documents of a fixed seed, as Python writes them: the fixture of `tests/tests/json.rs`.

    python3 tests/faults/documents.py

`documents.jsonl` has an object `{"doc": ...}` a line, without blanks. `documents.pretty.json` has the same objects one after
another over several lines, with other escapes. The text of a document in the first is what reading either must give.
"""

import json
import random
import string
from pathlib import Path

HERE = Path(__file__).parent / "files" / "json"
LETTERS = string.ascii_letters + string.digits + " _-.,:;{}[]\"\\/\b\f\n\r\t\x01\x1f\x7fäßπ€🌀"


def text(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(12)))


def number(rng: random.Random) -> int | float:
    return rng.choice([
        rng.randrange(-100, 100),
        rng.randrange(-(2**63), 2**63),
        rng.randrange(-(10**40), 10**40),
        rng.uniform(-1, 1),
        rng.uniform(-1e300, 1e300),
        rng.random() * 10 ** rng.randrange(-30, 30),
        float(rng.randrange(1000)),
    ])  # fmt: skip


def document(rng: random.Random, depth: int) -> object:
    kind = rng.randrange(10 if depth else 5)
    match kind:
        case 0 | 1:
            return number(rng)
        case 2:
            return text(rng)
        case 3:
            return rng.choice([True, False, None])
        case 4:
            return rng.choice(["2024-02-29", "2024-02-30", "2024-01-02 10:11:12.5", "1.50", "null", ""])
        case 5 | 6 | 7:
            return {text(rng): document(rng, depth - 1) for _ in range(rng.randrange(5))}
        case _:
            return [document(rng, depth - 1) for _ in range(rng.randrange(5))]


def main() -> None:
    rng = random.Random(20261128)
    documents = [{"doc": [document(rng, 6) for _ in range(2)]} for _ in range(200)]
    lines = [json.dumps(d, separators=(",", ":"), ensure_ascii=False) for d in documents]
    (HERE / "documents.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    pretty = [json.dumps(d, indent=rng.randrange(1, 5), ensure_ascii=True) for d in documents]
    (HERE / "documents.pretty.json").write_text("\n".join(pretty) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
