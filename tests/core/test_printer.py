"""IR -> text -> IR, and IR -> HTML."""

from __future__ import annotations

import html.parser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nuvec as nv
from nuvec.core import dtypes
from nuvec.core.check import check_ir
from nuvec.core.errors import IRError
from nuvec.core.html import ir_html
from nuvec.core.ir import IR, aval
from nuvec.core.parser import parse
from nuvec.core.printer import format_ir, format_value
from tests.core.toy_ir import eqn, example, literal, toy_primitives, var


@pytest.fixture(scope="module")
def toy():
    with toy_primitives() as made:
        yield made


EXAMPLE = """\
{ lambda x:float32[3] .
  const a:float32[2,2] = [[1.0, 2.0], [3.0, 4.5]]
  let b:float32[3] = toy.add x 0.5
      c:float32[3] = toy.call[
        ir={ lambda a:float32[3] .
          let b:float32[3] = toy.shift[by=1] a
          in (b) }
        name='f'
      ] b
      d:float32[3] e:float32[3] = toy.pair c
  in (d, a, 2) }"""


def test_the_form(toy):
    assert format_ir(example(toy)) == EXAMPLE
    assert str(example(toy)) == EXAMPLE


def test_text_is_a_fixed_point(toy):
    ir = parse(EXAMPLE)
    check_ir(ir)
    assert format_ir(ir) == EXAMPLE
    assert ir.eqns[0].primitive is toy.add
    assert ir.eqns[1].params["name"] == "f"
    np.testing.assert_array_equal(ir.constants[0][1], [[1, 2], [3, 4.5]])
    assert not ir.constants[0][1].flags.writeable


def test_layout_carries_no_meaning(toy):
    assert format_ir(parse(" ".join(EXAMPLE.split()))) == EXAMPLE
    assert format_ir(parse(EXAMPLE.replace("let", "# remark\n let"))) == EXAMPLE


def test_source_comments_come_back(toy):
    text = format_ir(example(toy), source=True)
    assert "toy.add x 0.5  # train.py:12 (in loss)\n" in text
    ir = parse(text)
    sources = [e.source for e in ir.eqns]
    assert sources == ["train.py:12 (in loss)", None, "train.py:14 (in loss)"]
    assert format_ir(ir, source=True) == text
    assert format_ir(ir) == EXAMPLE


def test_names(toy):
    hints = ["a", "a", "in", "not a name", "", "loss_1", "nan"]
    inputs = tuple(var(hint=hint) for hint in hints)
    first = format_ir(IR(inputs, (), (), ())).splitlines()[0]
    names = [binder.split(":")[0] for binder in first.split()[2:-1]]
    assert names == ["a", "b", "c", "d", "e", "loss_1", "f"]


def test_there_are_enough_names():
    inputs = tuple(var(()) for _ in range(1000))
    text = format_ir(IR(inputs, (), (), inputs))
    names = [binder.split(":")[0] for binder in text.splitlines()[0].split()[2:-1]]
    assert names[:3] == ["a", "b", "c"]
    assert names[25:28] == ["z", "aa", "ab"]
    assert len(set(names)) == 1000
    assert format_ir(parse(text)) == text


def test_empty_parts(toy):
    ir = IR((), (), (eqn(toy.nothing, [], []), eqn(toy.nothing, [literal(1.5)], [])), ())
    text = format_ir(ir)
    assert "() = toy.nothing 1.5" in text
    assert format_ir(parse(text)) == text
    assert parse("{ lambda . in () }").outputs == ()


LITERALS = [
    (True, "bool", False, "True"), (2, "int32", False, "2"), (-2, "int8", False, "-2:int8"),
    (2.0, "float32", False, "2.0"), (2, "float64", False, "2.0:float64"),
    (1, "int32", True, "1:~int32"), (0.1, "float16", False, "0.1:float16"),
    (2, "bfloat16", False, "2.0:bfloat16"), (float("-inf"), "float32", False, "-inf"),
    (float("nan"), "float32", True, "nan:~float32"), (-float("nan"), "float32", False, "-nan"),
    (-float("nan"), "bfloat16", False, "-nan:bfloat16"),
    (-float("nan"), "float16", True, "-nan:~float16"),
    (complex(-float("nan"), 1), "complex64", False, "complex(-nan, 1.0)"),
    (-0.0, "float32", False, "-0.0"),
    (1e30, "float32", False, "1e+30"), (1 - 2j, "complex64", False, "complex(1.0, -2.0)"),
    (complex(-0.0, -0.0), "complex128", False, "complex(-0.0, -0.0):complex128"),
    (2**63, "uint64", False, "9223372036854775808:uint64"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "dtype", "weak", "text"), LITERALS)
def test_literals(value, dtype, weak, text):
    program = format_ir(IR((), (), (), (literal(value, dtype, weak), literal(1, "int8"))))
    assert f"in ({text}, 1:int8)" in program
    back = parse(program).outputs[0]
    assert back.aval is aval((), dtypes.as_dtype(dtype), weak)
    assert np.asarray(back.value).tobytes() == np.asarray(literal(value, dtype).value).tobytes()


@given(st.floats(width=32), st.floats())
def test_floats_are_exact(single, double):
    ir = parse(format_ir(IR((), (), (), (literal(single), literal(double, "float64")))))
    np.testing.assert_equal(ir.outputs[0].value, np.float32(single))
    np.testing.assert_equal(ir.outputs[1].value, np.float64(double))


def test_a_literal_before_the_next_equation(toy):
    x = var()
    a, b = var(), var()
    eqns = (eqn(toy.add, [x, literal(1, "float32", True)], [a]), eqn(toy.add, [a, x], [b]))
    text = format_ir(IR((x,), (), eqns, (b,)))
    assert format_ir(parse(text)) == text


PARAMS = [
    0, -3, 1.5, -0.0, float("inf"), 1 - 2j, True, None, "plain", "it's # \"odd\" \\ \n{", "", ...,
    (), (1,), (1, (2,), None), [1, [2]], {"a": 1, "b": (2,)}, {}, slice(None, 3), slice(0, 9, -1),
    np.dtype("float32"), dtypes.bfloat16, (dtypes.int8, dtypes.bool_), np.float16(1.5), np.int8(-3),
    aval((2, 3), dtypes.float32), aval((), dtypes.int32, True), (aval((0,), dtypes.bool_),),
]  # fmt: skip


@pytest.mark.parametrize("value", PARAMS, ids=format_value)
def test_params_come_back(toy, value):
    x = var()
    text = format_ir(IR((x,), (), (eqn(toy.shift, [x], [a := var()], first=value, by=2),), (a,)))
    params = parse(text).eqns[0].params
    assert params == {"first": value, "by": 2}
    assert type(params["first"]) is type(value)
    assert format_ir(parse(text)) == text


def test_tuples_of_irs_come_back(toy):
    x = var()
    branch = parse("{ lambda x:float32[3] . in (x) }")
    text = format_ir(IR((x,), (), (eqn(toy.call, [x], [x], ir=(branch, branch)),), ()))
    text = text.replace("a:float32[3] = toy.call", "b:float32[3] = toy.call")
    assert text.count("lambda x:float32[3]") == 2


def test_what_cannot_be_read_back_is_named(toy):
    class Group:
        pass

    x = var()
    for value in (Group(), len, (1, Group()), frozenset({1}), np.arange(3)):
        text = format_ir(IR((x,), (), (eqn(toy.shift, [x], [var()], group=value),), (x,)))
        assert " at 0x" not in text
        with pytest.raises(IRError, match=r"the parameter group of toy.shift cannot be read back"):
            parse(text)


def test_large_constants_are_not_written_out():
    c = var((65,))
    text = format_ir(IR((), ((c, np.zeros(65, np.float32)),), (), (c,)))
    assert "a:float32[65] = <65 values>" in text
    with pytest.raises(IRError, match=r"line 2 .*the constant a cannot be read back.*65 values"):
        parse(text)


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=dtypes.name)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (0, 2), (2, 0, 1)])
def test_constants_of_every_dtype(dtype, shape):
    c = var(shape, dtype)
    value = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    text = format_ir(IR((), ((c, value),), (), (c,)))
    ir = parse(text)
    assert ir.constants[0][1].dtype == dtype
    np.testing.assert_array_equal(ir.constants[0][1], value)
    assert format_ir(ir) == text


def _special(dtype):
    """Values that are hard to write, 70 of them: the ends of the range, zeros, infinities, NaNs."""
    if dtypes.is_complex(dtype):
        parts = _special(dtypes.real_part(dtype))
        found = np.empty(70, dtype)
        found.real, found.imag = parts, np.roll(parts, -1)
        return found
    if not dtypes.is_inexact(dtype):
        low, high = (0, 1) if dtypes.is_bool(dtype) else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return np.array([low, high, 0, 1, high // 3] * 14, dtype)
    info = dtypes.finfo(dtype)
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1 / 3, -1e-3]
    values += [float(info.max), float(info.tiny), float(info.smallest_subnormal), 1.5]
    found = np.array(values * 6, dtype)[:70]
    bits = found.view(f"u{found.dtype.itemsize}")
    bits[-1] = bits[4] | 1  # a NaN with a payload
    return found


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=dtypes.name)
@pytest.mark.parametrize("shape", [(70,), (2, 5, 7), (1, 70), (7, 0, 10), (12,), (2, 3), ()])
def test_constants_come_back_to_the_bit(dtype, shape):
    count = int(np.prod(shape))
    value = _special(dtype)[:count].reshape(shape)
    c = var(shape, dtype)
    text = format_ir(IR((), ((c, value),), (), (c,)), constants="full")
    assert ("bytes('" in text) == (count > 64)
    again = parse(text)
    found = again.constants[0][1]
    assert (found.dtype, found.shape) == (value.dtype, value.shape)
    assert found.tobytes() == value.tobytes()
    assert not found.flags.writeable
    assert again.to_text(constants="full") == text


def test_a_constant_in_any_layout_and_a_nan_that_numbers_cannot_tell():
    value = np.arange(70.0).reshape(7, 10).T[::-1]
    c = var(value.shape, "float64")
    ir = parse(IR((), ((c, value),), (), (c,)).to_text(constants="full"))
    np.testing.assert_array_equal(ir.constants[0][1], value)
    odd = np.array([1, 0x7FC00001], np.uint32).view(np.float32)
    c = var((2,))
    text = str(IR((), ((c, odd),), (), (c,)))  # also where it is small
    assert "bytes('" in text
    assert parse(text).constants[0][1].tobytes() == odd.tobytes()


def test_how_constants_are_written_is_checked():
    with pytest.raises(ValueError, match="'short' or 'full', got 'all'"):
        IR((), (), (), ()).to_text(constants="all")


MALFORMED = [
    ("{ lambda . const a:int8[2] = [1, 2, 3] in () }", r"the constant a is no int8\[2\]"),
    ("{ lambda . const a:int8[1] = [1000] in () }", r"the constant a is no int8\[1\]"),
    ("{ lambda . const a:int8[1] = ['x'] in () }", r"the constant a is no int8\[1\]"),
    ("{ lambda . const a:int8[2] = bytes('AA==') in () }", r"has 1 bytes, and int8\[2\] takes 2"),
    ("{ lambda . const a:int8[2] = bytes('!') in () }", "the constant a is not in base64"),
    ("{ lambda . const a:int8[2] = bytes(3) in () }", "expected a string, got 3"),
    ("{ lambda . let a:int8[] = toy.shift[by=*1] 1:int8 in () }", "no &1 stands before it"),
    ("{ lambda . let a:int8[] = toy.shift[by=&1 Rule[]] 1:int8 in () }", "cannot be a Rule"),
    ("", r"line 1 .*expected '\{', got the end"),
    ("{ lambda x:float32[3] . in (y) }", "y is used but not defined"),
    ("{ lambda x:float32[3] x:float32[3] . in () }", "x is defined twice"),
    ("{ lambda x:float99[3] . in () }", "float99 is not a dtype"),
    ("{ lambda . let a:int8[] = no.such 1\n in () }", "no primitive named no.such"),
    ("{ lambda .\n let a:int8[] = toy.add a\n in () }", "line 2 .*a is used but not defined"),
    ("{ lambda . in () } }", "expected the end"),
    ("{ lambda . in (1 2) }", r"expected ',' or '\)', got 2"),
    ("{ lambda . in (§) }", "cannot read '§'"),
    ("{ lambda . let a:int8[] = toy.shift[by=] 1 in () }", r"expected a value, got \]"),
]


@pytest.mark.parametrize(("text", "message"), MALFORMED)
def test_malformed_text(toy, text, message):
    with pytest.raises(IRError, match=message):
        parse(text)


# --- HTML


class Balance(html.parser.HTMLParser):
    """Checks that tags nest, and collects what is shown."""

    def __init__(self):
        super().__init__()
        self.open, self.classes, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.classes += [value for name, value in attrs if name == "class"]
        assert not {name for name, _ in attrs} & {"src", "href"}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("send", [False, True])
def test_html(toy, send):
    page = Balance()
    page.feed(ir_html(example(toy, send)))
    assert page.open == []
    text = "".join(page.text)
    assert "lambda (x:float32[3]), 3 equations" in text
    assert "ir (a:float32[3]), 1 equation" in text
    assert "# train.py:12 (in loss)" in text
    assert page.classes.count("eqn effect") == (2 if send else 0)  # the call and the send in it


def test_html_escapes(toy):
    x = var()
    page = ir_html(IR((x,), (), (eqn(toy.shift, [x], [var()], name="<b>&"),), (x,)))
    assert "&lt;b&gt;&amp;" in page
    assert "<b>" not in page


# --- Equations that are none


def one(equation, x="float32[3]"):
    return f"{{ lambda x:{x} .\n  let a:{equation}\n  in (a) }}"


REFUSED = [
    ("float32[4] = sin x", r"output 0 is float32\[4\], expected float32\[3\]"),
    ("~float32[3] = sin x", r"output 0 is ~float32\[3\], expected float32\[3\]"),
    ("float64[3] = sin x", r"output 0 is float64\[3\]"),
    ("float32[3] b:float32[3] = sin x", "2 outputs, expected 1"),
    ("float32[3] = sin x x", "sin refuses.*TypeError: too many positional arguments"),
    ("float32[3] = add x", "add refuses.*TypeError: missing a required argument"),
    ("float32[3] = where True x x x", "where refuses.*TypeError: .*takes 3 positional"),
    ("float32[3] = sin[q=1] x", "sin refuses.*TypeError: got an unexpected keyword argument 'q'"),
    ("float32[-3] = sin x", r"none of them negative, got \(-3,\)"),
    ("float32[3.5] = sin x", "ValueError"),
    ("float32[] = sum[axis=(0,)] x", "sum refuses.*TypeError: .*argument: 'axes'"),
    ("float32[3] = sum[axes=(7,)] x", r"sum refuses.*AxisError: the axes \(7,\)"),
    ("float32[] = max[axes=(0, 0)] x", "max refuses.*AxisError"),
    ("int32[] = argmax[axis=-1] x", "argmax refuses.*AxisError"),
    ("float32[] = dot_general[contract=((-1,), (0,)) batch=((), ())] x x", "refuses.*AxisError"),
    ("float32[3] = transpose[permutation=(0, 0)] x", "transpose refuses.*AxisError"),
    ("float32[3] = reshape[shape=(7,)] x", "reshape refuses.*ShapeError"),
    ("float32[7] = reshape[shape=(7,)] x", "reshape refuses.*ShapeError"),
    ("float32[3] = placeholder", "placeholder refuses"),
    ("float32[] = sin 1.5:int32", "DtypeError"),
    ("float32[3] = round[decimals=int8(300)] x", "the parameter decimals of round.*DtypeError"),
    ("float32[3] = sin[a={[1]: 2}] x", "the parameter a of sin.*TypeError"),
    ("float32[3] = sin[a=int8(1, 2)] x", "the parameter a of sin.*ValueError"),
    ("float32[3] = sin[a=complex('x')] x", "the parameter a of sin.*ValueError"),
    ("float32[3] = sin[a='\\x'] x", "the parameter a of sin.*UnicodeDecodeError"),
    ("float32[3] = round[decimals=1 decimals=2] x", "round is given decimals twice"),
    (f"float32[3] = sin[a={'(' * 5000}] x", "the parameter a of sin.*RecursionError"),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "message"), REFUSED)
def test_every_equation_is_held_against_its_shape_rule(equation, message):
    with pytest.raises(IRError, match=rf"^line [23] of the IR's text: (?s:.)*{message}"):
        parse(one(equation))


def test_equations_inside_are_held_against_their_shape_rules():
    text = str(nv.make_ir(nv.compile(lambda x: nv.sin(x) * 2))(np.ones(3, np.float32)))
    parse(text)
    number = next(i for i, line in enumerate(text.splitlines(), 1) if "= sin" in line)
    with pytest.raises(IRError, match=f"line {number} of the IR's text.*in the parameter ir of"):
        parse(text.replace(":float32[3] = sin", ":float32[4] = sin"))


@pytest.mark.parametrize("text", [5, None, b"{ lambda . in () }", ["{"]])
def test_what_is_no_text(text):
    with pytest.raises(TypeError, match=r"parse takes the text of an IR, a str, got"):
        parse(text)
    with pytest.raises(TypeError, match=r"groups must say which group each symbol means"):
        parse("{ lambda . in () }", groups=3)


@given(st.data())
def test_a_text_with_an_error_is_refused_or_an_ir(data):
    """Whatever one change makes of a text: IRError, or an IR that is well-formed."""
    f = nv.compile(lambda x: nv.where(x > 0, nv.sum(x, 0), nv.reshape(x, (3, 2)).T[1]) * 2.5)
    tokens = str(nv.make_ir(f)(np.ones((2, 3), np.float32))).split(" ")
    at = data.draw(st.integers(0, len(tokens) - 1))
    other = data.draw(st.sampled_from([*tokens, "", "-1", "sin", "x x", "[a=1]", "(0,)"]))
    tokens[at] = data.draw(st.sampled_from([other, tokens[at] + other, tokens[at][:-1]]))
    try:
        ir = parse(" ".join(tokens))
    except IRError:
        return
    check_ir(ir)


# --- Custom rules, where they fold


@nv.custom_vjp
def _rule(x):
    return nv.sin(x) * x


_rule.defvjp(lambda x: (_rule(x), x), lambda x, c: (c * nv.cos(x),))


def test_html_folds_custom_rules():
    page = Balance()
    ir = nv.make_ir(nv.compile(lambda x: _rule(x) + 1))(np.ones(3, np.float32))
    source = ir_html(ir)
    page.feed(source)
    text = "".join(page.text)
    assert page.open == []
    for label in ("fun (a:", "rule.forward (a:", "rule.backward ("):
        assert label in text
    assert "[rule=&1 Rule[name='_rule' count=1" in text
    assert "[rule=*1]" in text  # in its own forward, where it is not shown once more
    assert text.count("rule.backward") == 1
    assert "lambda x" not in text and "{ lambda" not in source  # nothing is unfolded text


def test_the_graph_has_clusters_for_custom_rules():
    ir = nv.make_ir(nv.compile(lambda x: _rule(x) + 1))(np.ones(3, np.float32))
    graph = ir.to_dot()
    assert graph.count("{") == graph.count("}")
    for label in ("fun", "rule.forward", "rule.backward"):
        assert f'label="custom_rule: {label}"' in graph
    assert graph.count("rule.backward") == 1 and "lambda x" not in graph
