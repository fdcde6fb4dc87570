"""A page taken apart with the standard library's HTML parser."""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass, field
from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "wbr", "img", "input", "hr"}


@dataclass(eq=False)
class Element:
    """An element, its attributes, and the elements and text inside it."""

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    def all(self, tag: str = "", **attributes: str) -> list[Element]:
        """Elements inside, at any depth, with this tag and these attributes; `_class` is class."""
        wanted = {name.strip("_"): value for name, value in attributes.items()}
        found = []
        for child in self.children:
            matches = all(
                value in child.attributes.get(name, "").split()
                if name == "class"
                else child.attributes.get(name) == value
                for name, value in wanted.items()
            )
            found += [child] if matches and tag in ("", child.tag) else []
            found += child.all(tag, **attributes)
        return found

    def one(self, tag: str = "", **attributes: str) -> Element:
        """The only such element."""
        (found,) = self.all(tag, **attributes)
        return found

    @property
    def text(self) -> str:
        """Text inside, spaces joined."""
        return " ".join(" ".join(self.pieces).split())


def parse(page: bytes) -> Element:
    """Read a page; raises if an element is closed that was not open."""
    parser = _Parser()
    parser.feed(page.decode())
    parser.close()
    assert len(parser.open) == 1, [element.tag for element in parser.open]
    return parser.open[0]


def unpacked(text: str) -> bytes:
    """Read what a script of the page unpacks."""
    data = text.encode().translate(bytes.maketrans(b",.:", b"<>&"))
    return gzip.decompress(base64.b85decode(data))


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("document", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.pieces.append(data)
