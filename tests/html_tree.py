"""A page of HTML as a tree of elements, for tests; raises where a tag does not close."""

import base64
import hashlib
from html.parser import HTMLParser

VOID = {"br", "circle", "hr", "img", "input", "line", "link", "meta", "rect", "wbr"}


class Element:
    """A tag with its attributes and what is in it, in order: elements and texts."""

    def __init__(self, tag, attributes, parent=None):
        self.tag, self.attributes, self.parent = tag, attributes, parent
        self.children = []

    def __getitem__(self, name):
        return self.attributes[name]

    def get(self, name, default=None):
        return self.attributes.get(name, default)

    def all(self, *tags, **attributes):
        """Elements below this one, in order, with one of these tags and all these attributes."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                wanted = not tags or child.tag in tags
                if wanted and all(child.get(k.rstrip("_")) == v for k, v in attributes.items()):
                    found.append(child)
                found += child.all(*tags, **attributes)
        return found

    def one(self, *tags, **attributes):
        """The one such element."""
        (found,) = self.all(*tags, **attributes)
        return found

    def text(self):
        """All texts, runs of white space as one blank."""
        return " ".join(self.raw().split())

    def raw(self):
        """All texts as they are."""
        return "".join(c.raw() if isinstance(c, Element) else c for c in self.children)


class _Builder(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.top = self.at = Element("", {})

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"{self.getpos()}: {tag} has an attribute twice"
        element = Element(tag, {name: value or "" for name, value in attrs}, self.at)
        self.at.children.append(element)
        if tag not in VOID:
            self.at = element

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert tag == self.at.tag, f"{self.getpos()}: </{tag}> closes <{self.at.tag}>"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.children.append(data)


def parse(text):
    """Root of a page."""
    builder = _Builder()
    builder.feed(text)
    builder.close()
    assert builder.at is builder.top, f"<{builder.at.tag}> is not closed"
    return builder.top.one("html")


def assert_policy(html):
    """The page's security policy lets in what is in the page, and pictures as data."""
    (policy,) = [m["content"] for m in html.all("meta") if "http-equiv" in m.attributes]
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    assert allowed["default-src"] == "'none'" and allowed["img-src"] == "data:"
    for tag in ("style", "script"):
        digest = hashlib.sha256(html.one(tag).raw().encode()).digest()
        assert allowed[f"{tag}-src"] == f"'sha256-{base64.b64encode(digest).decode()}'"
