"""Text -> IR: reads what `printer.format_ir` writes.

    ir      = "{" "lambda" binder* "." ["const" constant*] ["let" eqn*] "in" "(" atoms ")" "}"
    binder  = name ":" aval
    aval    = ["~"] dtype "[" [int ("," int)*] "]"
    eqn     = (binder+ | "()") "=" primitive ["[" (name "=" value)* "]"] atom* [comment]
    atom    = name | number [":" ["~"] dtype]
    value   = number | string | tuple | list | dict | dtype | aval | slice | scalar | ir | symbol
            | word | record
    symbol  = "@" name
    record  = "&" int name "[" (name "=" value)* "]" | "*" int

A constant is nested lists of numbers, or `bytes('...')`. A word is a name that the primitive has
for a value of the parameter (`Primitive.words`), or in a record the name of another parameter of
its equation.

A comment on the line an equation ends in is its source; other comments are skipped.
"""

from __future__ import annotations

import base64
import binascii
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from nuvec.core import dtypes
from nuvec.core.check import check_ir
from nuvec.core.complete import NAME
from nuvec.core.errors import ArgumentError, DtypeError, IRError
from nuvec.core.ir import IR, Atom, Aval, Eqn, Literal, Var, aval
from nuvec.core.primitive import TABLE

__all__ = ["parse"]

_TOKEN = re.compile(
    rf"""
      (?P<space>\s+)
    | (?P<comment>\#[^\n]*)
    | (?P<string>'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")
    | (?P<number>-?(?:(?:inf|nan)(?![\w.])|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?))
    | (?P<name>{NAME.pattern})
    | (?P<symbol>@\w+)
    | (?P<anchor>&\d+)
    | (?P<reference>\*\d+)
    | (?P<opaque><[^\n]*)
    | (?P<ellipsis>\.\.\.)
    | (?P<sign>[{{}}()\[\],:=~.])
    """,
    re.VERBOSE,
)


class _Token(NamedTuple):
    kind: str
    text: str
    line: int
    comment: str | None = None  # what follows it on its line, if that is a comment


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise IRError(f"line {line} of the IR's text: cannot read {text[position]!r}.")
        kind = str(match.lastgroup)
        if kind == "comment":
            if found and found[-1].line == line:
                found[-1] = found[-1]._replace(comment=match.group()[1:].strip())
        elif kind != "space":
            found.append(_Token(kind, match.group(), line))
        line += match.group().count("\n")
        position = match.end()
    found.append(_Token("end", "the end", line))
    return found


def parse(text: str, groups: Mapping[str, Any] | None = None) -> IR:
    """The IR that a text stands for; printing it gives the same text.

    groups -- what the symbols in the text stand for: `@world` is `groups["world"]`

    Primitives are looked up by name, and every equation's outputs are what its primitive's shape
    rule says. Raises IRError, with the line of the text, where the text is not an IR, names an
    unknown primitive, an undefined variable or a group that is not given, gives an equation what
    its shape rule refuses, or holds a value that text cannot carry (a function of the user's) or
    leaves out (a constant of more than 64 elements, unless `ir.to_text(constants="full")` wrote
    it); ArgumentError (a TypeError) when `text` is no str.

    >>> ir = parse("{ lambda x:float32[3] . in (x) }")
    >>> ir.in_avals
    (float32[3],)
    """
    if not isinstance(text, str):
        raise ArgumentError(
            f"parse takes the text of an IR, a str, got {type(text).__name__}; str(ir) and "
            "ir.to_text() make one"
        )
    if groups is not None and not isinstance(groups, Mapping):
        raise ArgumentError(
            "parse: groups must say which group each symbol means, as in {'world': group}, got "
            f"{groups!r}"
        )
    parser = _Parser(_tokens(text), {} if groups is None else groups)
    try:
        ir = parser.ir()
        if parser.peek().kind != "end":
            parser.fail("the end")
        for record in parser.complete:  # now that those that refer to each other are all there
            record.restored()
    except IRError:
        raise
    except Exception as error:  # a number out of range, nesting without end, ...
        parser.error(f"{parser.place} cannot be read: {type(error).__name__}: {error}".lstrip())
    check_ir(ir, parser.lines)
    return ir


class _Parser:
    """Recursive descent over the tokens; one method a line of the grammar."""

    def __init__(self, tokens: list[_Token], groups: Mapping[str, Any]) -> None:
        self.tokens = tokens
        self.groups = groups
        self.position = 0
        self.place = ""  # the parameter or constant being read, for messages
        self.words: Mapping[str, Any] = {}  # what names mean there
        self.records: dict[str, Any] = {}  # by number
        self.complete: list[Any] = []
        self.lines: dict[Eqn, int] = {}  # where each equation begins

    # Tokens

    def peek(self, ahead: int = 0) -> _Token:
        return self.tokens[min(self.position + ahead, len(self.tokens) - 1)]

    def take(self) -> _Token:
        token = self.peek()
        self.position += 1
        return token

    def accept(self, text: str) -> bool:
        token = self.peek()
        if token.text != text or token.kind == "string":
            return False
        self.position += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(repr(text))

    def expect_kind(self, kind: str) -> str:
        if self.peek().kind != kind:
            self.fail(f"a {kind}")
        return self.take().text

    def fail(self, wanted: str) -> NoReturn:
        token = self.peek()
        self.error(f"expected {wanted}, got {token.text}", token.line)

    def error(self, message: str, line: int | None = None) -> NoReturn:
        line = self.peek().line if line is None else line
        raise IRError(f"line {line} of the IR's text: {message}.")

    def series(self, item: Callable[[], Any], close: str) -> tuple[list[Any], bool]:
        """Items between commas up to `close`, and whether a comma follows the last."""
        items: list[Any] = []
        comma = False
        while not self.accept(close):
            if items and not comma:
                self.fail(f"',' or {close!r}")
            items.append(item())
            comma = self.accept(",")
        return items, comma

    # Programs

    def ir(self) -> IR:
        self.expect("{")
        self.expect("lambda")
        scope: dict[str, Var] = {}
        inputs = []
        while not self.accept("."):
            inputs.append(self.binder(scope))
        constants = []
        if self.accept("const"):
            while self.peek().text not in ("let", "in"):
                constants.append(self.constant(scope))
        eqns = []
        if self.accept("let"):
            while self.peek().text != "in":
                eqns.append(self.eqn(scope))
        self.expect("in")
        self.expect("(")
        outputs, _ = self.series(lambda: self.atom(scope), ")")
        self.expect("}")
        return IR(tuple(inputs), tuple(constants), tuple(eqns), tuple(outputs))

    def binder(self, scope: dict[str, Var]) -> Var:
        name = self.expect_kind("name")
        if name in scope:
            self.error(f"{name} is defined twice")
        self.expect(":")
        scope[name] = Var(self.aval(), name)
        return scope[name]

    def aval(self) -> Aval:
        weak = self.accept("~")
        dtype = self.dtype()
        self.expect("[")
        shape, _ = self.series(lambda: int(self.expect_kind("number")), "]")
        return aval(tuple(shape), dtype, weak)

    def dtype(self) -> np.dtype[Any]:
        name = self.expect_kind("name")
        try:
            return dtypes.as_dtype(name)
        except DtypeError:
            self.error(f"{name} is not a dtype")

    def constant(self, scope: dict[str, Var]) -> tuple[Var, np.ndarray[Any, Any]]:
        var = self.binder(scope)
        self.place = f"the constant {var.hint}"
        self.expect("=")
        a = var.aval
        if self.peek().text == "bytes":
            self.take()
            self.expect("(")
            array = self.from_bytes(_string(self.expect_kind("string")), a)
            self.expect(")")
        else:
            try:
                array = np.array(self.value(), a.dtype).reshape(a.shape)
            except (TypeError, ValueError, OverflowError) as error:
                self.error(f"{self.place} is no {a}: {error}")
        array.flags.writeable = False
        return var, array

    def from_bytes(self, text: str, a: Aval) -> np.ndarray[Any, Any]:
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            self.error(f"{self.place} is not in base64: {error}")
        if len(data) != a.nbytes:
            self.error(f"{self.place} has {len(data)} bytes, and {a} takes {a.nbytes}")
        array = np.frombuffer(bytearray(data), a.dtype).reshape(a.shape)
        return array if sys.byteorder == "little" else array.byteswap()

    def eqn(self, scope: dict[str, Var]) -> Eqn:
        inner: dict[str, Var] = {}  # an equation does not see its own outputs
        line = self.peek().line
        if self.accept("("):
            self.expect(")")
        while not self.accept("="):
            self.binder(inner)
        token = self.take()
        primitive = TABLE.get(token.text)
        if primitive is None:
            self.error(f"there is no primitive named {token.text}", token.line)
        params: dict[str, Any] = {}
        if self.accept("["):
            self.params(params, primitive.name, primitive.words)
        inputs = []
        while self.starts_atom():
            inputs.append(self.atom(scope))
        source = self.tokens[self.position - 1].comment
        repeated = inner.keys() & scope.keys()
        if repeated:
            self.error(f"{min(repeated)} is defined twice")
        scope.update(inner)
        eqn = Eqn(primitive, tuple(inputs), tuple(inner.values()), params, source)
        self.lines[eqn] = line
        return eqn

    def params(
        self, params: dict[str, Any], of: str, words: Mapping[str, Mapping[str, Any]],
        given: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Fill in what stands in brackets.  `given` is what every name means besides its words."""
        place, outer = self.place, self.words
        while not self.accept("]"):
            name = self.expect_kind("name")
            if name in params:
                self.error(f"{of} is given {name} twice")
            self.place = f"the parameter {name} of {of}"
            self.expect("=")
            own = words.get(name)
            self.words = {**params, **own} if own else given or {}
            params[name] = self.value()
        self.place, self.words = place, outer

    def record(self) -> Any:
        """What a class among the words makes of its fields."""
        number = self.take().text[1:]
        token = self.take()
        kind = self.words.get(token.text)
        if not isinstance(kind, type):
            self.error(f"{self.place} cannot be a {token.text}", token.line)
        # It is there before its fields, which may refer to it.
        record: Any = object.__new__(kind)
        self.records[number] = record
        self.expect("[")
        fields: dict[str, Any] = {}
        self.params(fields, token.text, {}, {n: v for n, v in self.words.items() if v is not kind})
        try:
            record.__init__(**fields)
        except TypeError as error:
            self.error(f"{self.place}: {error}", token.line)
        self.complete.append(record)
        return record

    def reference(self) -> Any:
        token = self.take()
        if token.text[1:] not in self.records:
            self.error(f"{self.place} is {token.text}, and no &{token.text[1:]} stands before it")
        return self.records[token.text[1:]]

    def starts_atom(self) -> bool:
        token = self.peek()
        if token.kind == "number" or token.text == "complex":
            return True
        if token.kind != "name" or token.text == "in":
            return False
        # A name with a colon begins the next equation; True:~bool would be a literal.
        return token.text in ("True", "False") or self.peek(1).text != ":"

    def atom(self, scope: dict[str, Var]) -> Atom:
        token = self.peek()
        if token.kind == "name" and token.text not in ("True", "False", "complex", "inf", "nan"):
            if token.text not in scope:
                self.error(f"{token.text} is used but not defined")
            return scope[self.take().text]
        value = self.value()
        dtype, weak = dtypes.scalar_dtype(value), False
        if self.accept(":"):
            weak = self.accept("~")
            dtype = self.dtype()
        return Literal(dtypes.python_scalar(value, dtype), weak)

    # Values

    def value(self) -> Any:
        token = self.peek()
        if token.kind == "opaque":
            hint = ""
            if re.match(r"<\d+ values>", token.text):
                hint = ": values were left out; write them with ir.to_text(constants='full')"
            self.error(f"{self.place} cannot be read back from text: {token.text}{hint}")
        if token.kind == "symbol":
            return self.symbol()
        if token.kind == "anchor":
            return self.record()
        if token.kind == "reference":
            return self.reference()
        if token.kind == "number":
            self.take()
            return _number(token.text)
        if token.kind == "string":
            return _string(self.take().text)
        if token.kind == "ellipsis":
            self.take()
            return ...
        if token.kind == "name":
            return self.named_value()
        if token.text == "~":
            return self.aval()
        if token.text == "{" and self.peek(1).text == "lambda":
            place, words = self.place, self.words
            self.words = {}
            ir = self.ir()
            self.place, self.words = place, words
            return ir
        return self.collection()

    def symbol(self) -> Any:
        name = self.peek().text[1:]
        if name not in self.groups:
            given = ", ".join(map(repr, self.groups)) or "none"
            self.error(
                f"{self.place} is the group @{name}, which text cannot carry (given: {given}); "
                f"pass it, as in parse(text, groups={{{name!r}: group}})"
            )
        self.take()
        return self.groups[name]

    def collection(self) -> Any:
        if self.accept("("):
            items, comma = self.series(self.value, ")")
            if len(items) == 1 and not comma:
                return items[0]
            return tuple(items)
        if self.accept("["):
            return self.series(self.value, "]")[0]
        if self.accept("{"):
            return dict(self.series(self.pair, "}")[0])
        self.fail("a value")

    def pair(self) -> tuple[Any, Any]:
        key = self.value()
        self.expect(":")
        return key, self.value()

    def named_value(self) -> Any:
        token = self.peek()
        words = {"True": True, "False": False, "None": None}
        if token.text in words:
            self.take()
            return words[token.text]
        if token.text in self.words:
            return self.words[self.take().text]
        makers: dict[str, Callable[..., Any]] = {"complex": complex, "slice": slice}
        follows = self.peek(1).text
        if token.text in makers and follows == "(":
            self.take()
            self.take()
            return makers[token.text](*self.series(self.value, ")")[0])
        if follows == "[":
            return self.aval()
        dtype = self.dtype()
        if self.accept("("):
            (value,), _ = self.series(self.value, ")")
            return dtypes.python_scalar(value, dtype)
        return dtype


def _string(text: str) -> str:
    """What a literal of a string means.  (`ast.literal_eval` fails now and then when several
    threads call it, in Python 3.11.)"""
    return text[1:-1].encode("latin-1", "backslashreplace").decode("unicode_escape")


def _number(text: str) -> int | float:
    return int(text) if text.lstrip("-").isdigit() else float(text)
