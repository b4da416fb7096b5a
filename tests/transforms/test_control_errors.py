"""What a mistake in control flow says: the function that the user called, whatever it is made of,
the place in its carry, inputs or operands, the user's line, and what to do."""

from __future__ import annotations

from typing import Any

import pytest

import nuvec as nv
from nuvec.core.errors import (
    ArgumentError,
    AxisError,
    ConcretizationError,
    DtypeError,
    ShapeError,
    TreeError,
)
from tests.transforms.test_errors import TEXT, Row, W, X, check_row

VALUE = ("nv.where or nv.cond", "Python value that the function closes over")


def known(f: Any) -> Any:
    """`f` with bounds that are known."""
    return f


ROWS = [
    # Values asked of what has none
    Row("value in checkpoint", lambda: nv.checkpoint(lambda p: 1 if p["w"][0] else 2)(W),
        ConcretizationError, ("checkpoint of <lambda>", "argument 'p'['w']", *VALUE)),
    Row("value in scan", lambda: nv.scan(lambda c, x: (c, 1 if c["h"] else 2), {"h": 1.0}, X),
        ConcretizationError, ("the body of scan", "depends on carry['h']", *VALUE)),
    Row("value of xs", lambda: nv.scan(lambda c, x: (c, 1 if x[0] else 2), 0.0, (X, X)),
        ConcretizationError, ("the body of scan", "depends on x[0]", *VALUE)),
    Row("value in cond",
        lambda: nv.cond(X[0] > 0, lambda a, b: 1 if b else 2, lambda a, b: 1, 1, 2),
        ConcretizationError, ("the true branch of cond", "depends on operand[1]", *VALUE)),
    Row("value in switch", lambda: nv.switch(nv.array(1), [len, lambda p: int(p["w"][0])], W),
        ConcretizationError, ("branch 1 of switch", "depends on operand[0]['w']", *VALUE)),
    Row("value in condition",
        lambda: nv.while_loop(lambda c: bool(c["h"]), lambda c: c, {"h": 1.0}),
        ConcretizationError, ("the condition of while_loop", "depends on carry['h']", *VALUE)),
    Row("value in while_loop",
        lambda: nv.while_loop(lambda c: c["h"] > 0, lambda c: c if c["h"] else W, {"h": 1.0}),
        ConcretizationError, ("the body of while_loop", "depends on carry['h']", *VALUE)),
    Row("value in max_steps", lambda: nv.while_loop(
            lambda c: c["h"] > 0, lambda c: c if c["h"] else W, {"h": 1.0}, max_steps=2),
        ConcretizationError, ("the body of while_loop", "depends on carry['h']", *VALUE)),
    Row("value in fori_loop", lambda: nv.fori_loop(0, 3, lambda i, c: c if c["w"][0] else X, W),
        ConcretizationError, ("the body of fori_loop", "depends on carry['w']", *VALUE)),
    Row("value of i", lambda: nv.fori_loop(0, 3, lambda i, c: c if i else -c, X),
        ConcretizationError, ("the body of fori_loop", "depends on i of", *VALUE)),
    Row("value of traced i",
        lambda: nv.compile(lambda n: nv.fori_loop(0, n, lambda i, c: c if i else -c, X))(3),
        ConcretizationError, ("the body of fori_loop", "depends on i of", *VALUE)),
    Row("value in map", lambda: nv.map(lambda x: 1 if x["w"] else 2, W),
        ConcretizationError, ("the body of map", "depends on x['w']", *VALUE)),
    Row("value in vectorize", lambda: nv.vectorize(lambda x: 1 if x else 2)(X),
        ConcretizationError, ("vectorize of <lambda>", "argument 'x' of <lambda>", "nv.where")),
    Row("value in compile", lambda: nv.compile(lambda x: 1 if x else 2)(1.0),
        ConcretizationError, ("argument 'x' of <lambda>", "static_argnums of nv.compile")),
    # Control flow
    Row("scan of no function", lambda: nv.scan(3, 0.0, X), ArgumentError,
        ("scan takes a function as its body", "got int")),
    Row("scan body", lambda: nv.scan(lambda c: c, 0.0, X), ArgumentError,
        ("scan calls its body with (carry, x)", "it takes (c)")),
    Row("scan init", lambda: nv.scan(lambda c, x: (c, x), TEXT, X), DtypeError,
        ("scan: init['w'] is a str", "pass an Array")),
    Row("scan next carry", lambda: nv.scan(lambda c, x: ({"w": "a"}, x), W, X), DtypeError,
        ("scan: the next carry['w'] is a str", "pass an Array")),
    Row("scan y", lambda: nv.scan(lambda c, x: (c, TEXT), 0.0, X), DtypeError,
        ("scan: y['w'] is a str", "pass an Array")),
    Row("scan reverse", lambda: nv.scan(lambda c, x: (c, x), 0.0, X, reverse="no"), ArgumentError,
        ("scan: reverse must be a boolean", "'no'")),
    Row("while_loop condition", lambda: nv.while_loop(3, lambda c: c, X), ArgumentError,
        ("while_loop takes a function as cond_fun", "got int")),
    Row("while_loop body", lambda: nv.while_loop(lambda c: c > 0, lambda: 1, 1), ArgumentError,
        ("while_loop calls body_fun with (carry)", "it takes ()")),
    Row("max_steps", lambda: nv.while_loop(lambda c: c > 0, lambda c: c, 1, max_steps=-1),
        ArgumentError, ("while_loop: max_steps must be an integer >= 0", "-1")),
    *[Row(f"while_loop shape, max_steps={n}", lambda n=n: nv.while_loop(
              lambda c: c["w"][0] > 0, lambda c: {"w": c["w"][0]}, W, max_steps=n), ShapeError,
          ("while_loop: carry['w'] has shape (2,)", "() in its next value")) for n in (None, 2)],
    *[Row(f"while_loop dtype, max_steps={n}", lambda n=n: nv.while_loop(
              lambda c: c["w"][0] > 0, lambda c: {"w": c["w"] > 0}, W, max_steps=n), DtypeError,
          ("while_loop: carry['w'] is float32[2]", "bool[2] in its next value"))
      for n in (None, 2)],
    *[Row(f"while_loop leaf, max_steps={n}", lambda n=n: nv.while_loop(
              lambda c: c["w"][0] > 0, lambda c: TEXT, W, max_steps=n), DtypeError,
          ("while_loop: the next carry['w'] is a str", "pass an Array")) for n in (None, 2)],
    *[Row(f"fori_loop shape, {how.__name__}",
          lambda how=how: how(lambda n: nv.fori_loop(0, n, lambda i, c: {"w": c["w"][0]}, W))(3),
          ShapeError, ("fori_loop: carry['w'] has shape (2,)", "() in its next value"))
      for how in (known, nv.compile)],
    *[Row(f"fori_loop structure, {how.__name__}",
          lambda how=how: how(lambda n: nv.fori_loop(0, n, lambda i, c: (c, c), W))(3), TreeError,
          ("fori_loop: the carry has structure PyTree({'w': *})", "its next value PyTree(({'w'"))
      for how in (known, nv.compile)],
    *[Row(f"fori_loop leaf, {how.__name__}",
          lambda how=how: how(lambda n: nv.fori_loop(0, n, lambda i, c: TEXT, W))(3), DtypeError,
          ("fori_loop: the next carry['w'] is a str", "pass an Array"))
      for how in (known, nv.compile)],
    *[Row(f"fori_loop init, {how.__name__}",
          lambda how=how: how(lambda n: nv.fori_loop(0, n, lambda i, c: c, TEXT))(3), DtypeError,
          ("fori_loop: init['w'] is a str", "pass an Array")) for how in (known, nv.compile)],
    Row("fori_loop body", lambda: nv.fori_loop(0, 3, lambda c: c, X), ArgumentError,
        ("fori_loop calls body_fun with (i, carry)", "it takes (c)")),
    Row("fori_loop unroll", lambda: nv.fori_loop(0, 3, lambda i, c: c, X, unroll="a"),
        ArgumentError, ("fori_loop: unroll must be an integer", "'a'")),
    Row("map xs", lambda: nv.map(lambda x: x, TEXT), DtypeError, ("map: xs['w'] is a str",)),
    Row("map xs, batched", lambda: nv.map(lambda x: x, TEXT, batch_size=2), DtypeError,
        ("map: xs['w'] is a str",)),
    Row("map of nothing", lambda: nv.map(lambda x: x, ()), ShapeError, ("map: xs has no arrays",)),
    Row("map sizes", lambda: nv.map(lambda x: x, (X, nv.ones(3))), ShapeError,
        ("map: leading sizes differ: xs[0]: 2, xs[1]: 3",)),
    Row("map function", lambda: nv.map(lambda x, y: x, X), ArgumentError,
        ("map calls its function with (x)", "it takes (x, y)")),
    Row("map output", lambda: nv.map(lambda x: TEXT, X), DtypeError,
        ("map: output['w'] is a str", "pass an Array")),
    Row("batch_size", lambda: nv.map(lambda x: x, X, batch_size=0), ArgumentError,
        ("map: batch_size must be an integer >= 1", "0")),
    Row("elems", lambda: nv.associative_scan(nv.add, TEXT), DtypeError,
        ("associative_scan: elems['w'] is a str", "pass an Array")),
    Row("elems axis", lambda: nv.associative_scan(nv.add, W, axis=1), AxisError,
        ("associative_scan: elems['w']: axis 1 is out of bounds", "use -1 to 0")),
    Row("elems axis type", lambda: nv.associative_scan(nv.add, X, axis="a"), ArgumentError,
        ("associative_scan: axis must be an integer", "'a'")),
    Row("elems sizes", lambda: nv.associative_scan(nv.add, (X, nv.ones(3))), ShapeError,
        ("sizes along axis 0 differ: elems[0]: (2,), elems[1]: (3,)",)),
    Row("fn dtype", lambda: nv.associative_scan(lambda a, b: {"w": a["w"] > 0}, W), DtypeError,
        ("associative_scan: fn must keep", "float32[1] in elems['w']", "bool[1]")),
    Row("fn", lambda: nv.associative_scan(lambda a: a, X), ArgumentError,
        ("associative_scan calls fn with two trees", "it takes (a)")),
    Row("branch of no function", lambda: nv.cond(True, 3, lambda x: x, X), ArgumentError,
        ("cond takes a function as true_fun", "got int")),
    Row("branch operands", lambda: nv.cond(True, lambda x: x, lambda x: x), ArgumentError,
        ("cond calls the false branch with 0 operand(s)", "it takes (x)")),
    Row("cond operand", lambda: nv.cond(True, len, len, X, TEXT), DtypeError,
        ("cond: operand[1]['w'] is a str", "pass an Array")),
    Row("switch of a function", lambda: nv.switch(0, len, X), ArgumentError,
        ("switch takes a sequence of at least one function", "got builtin_function")),
    Row("switch branch", lambda: nv.switch(0, [len, 3], X), ArgumentError,
        ("switch takes a function as branch 1", "got int")),
    Row("switch operand", lambda: nv.switch(0, [len], X, TEXT), DtypeError,
        ("switch: operand[1]['w'] is a str", "pass an Array")),
    Row("carry structure", lambda: nv.scan(lambda c, _: ({"b": c["w"]}, None), W, length=2),
        TreeError, ("the carry", "its next value", "Missing keys: 'w'")),
    Row("carry shape", lambda: nv.scan(lambda c, _: ({"w": c["w"][:1]}, None), W, length=2),
        ShapeError, ("scan: carry['w'] has shape (2,) in the carry", "(1,)", "must be equal")),
    Row("carry dtype",
        lambda: nv.scan(lambda c, _: ({"w": c["w"].astype(nv.float64)}, None), W, length=2),
        DtypeError, ("scan: carry['w'] is float32[2] in the carry", "float64[2]", ".astype")),
    Row("body no pair", lambda: nv.scan(lambda c, _: c, X, length=2), TreeError,
        ("must return a pair (next carry, y)", "return carry, None")),
    Row("scan sizes", lambda: nv.scan(lambda c, _: (c, None), X, {"a": X, "b": nv.ones(3)}),
        ShapeError, ("xs['a']: 2", "xs['b']: 3")),
    Row("scan scalar", lambda: nv.scan(lambda c, _: (c, None), X, {"a": 1.0}), ShapeError,
        ("xs['a'] is a scalar", "leading axis")),
    Row("branch structure", lambda: nv.cond(X[0] > 0, lambda x: {"a": x}, lambda x: {"b": x}, X),
        TreeError, ("the false branch", "the true branch", "Missing keys")),
    Row("branch shape", lambda: nv.cond(X[0] > 0, lambda x: [x], lambda x: [x[0]], X),
        ShapeError, ("output[0] has shape", "the false branch", "must be equal")),
    Row("branch dtype",
        lambda: nv.cond(X[0] > 0, lambda x: [x], lambda x: [x.astype(nv.float64)], X), DtypeError,
        ("output[0] is float", "the true branch", ".astype")),
    Row("predicate shape", lambda: nv.cond(X > 0, lambda x: x, lambda x: x, X), ShapeError,
        ("boolean scalar", "bool[2]", "nv.where")),
    Row("predicate dtype", lambda: nv.cond(X[0], lambda x: x, lambda x: x, X), DtypeError,
        ("boolean scalar", "float32[]", "x > 0")),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_error_says_where_and_what_to_do(row: Row) -> None:
    check_row(row)
