"""Arithmetic on untrusted input: parsed by `ast`, walked node by node, bounded in size."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Final

Number = int | float

CHARACTERS: Final = re.compile(r"[0-9eE.+\-*/%() ]+")  # numbers and operators only, no names
MAX_LENGTH: Final = 200  # characters of an expression
MAX_BITS: Final = 4096  # of each intermediate number; Python prints at most 4,300 digits
BINARY: Final[dict[type[ast.operator], Callable[[Number, Number], Number]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
UNARY: Final[dict[type[ast.unaryop], Callable[[Number], Number]]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


class CalcError(ValueError):
    """The expression is not arithmetic, or its result is out of bounds; the text is one line."""


def calculate(expression: str) -> str:
    """Return the value of an arithmetic expression of numbers, `+ - * / // % **` and parentheses.

    Raises:
      CalcError: with the reason, in one line.
    """
    if len(expression) > MAX_LENGTH:
        raise CalcError(f"an expression may have at most {MAX_LENGTH} characters")
    if not CHARACTERS.fullmatch(expression):
        raise CalcError(f"{expression!r} is not arithmetic")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        value = _value(tree.body)
    except CalcError:
        raise
    except ZeroDivisionError:
        raise CalcError("division by zero") from None
    except OverflowError:
        raise CalcError("the result is too large") from None
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise CalcError(f"{expression!r} is not arithmetic") from None
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value):
            return _bounded(value)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in UNARY:
            return UNARY[type(op)](_value(operand))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _bounded(_power(_value(left), _value(right)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return _bounded(BINARY[type(op)](_value(left), _value(right)))
    raise CalcError(f"{ast.unparse(node)!r} is not arithmetic")


def _power(base: Number, exponent: Number) -> Number:
    # Checked before the computation: the operands give the size of a power.
    whole = isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1
    if whole and int(base).bit_length() * exponent > 2 * MAX_BITS:
        raise CalcError("the result is too large")
    result: object = base**exponent
    if not isinstance(result, int | float):  # the root of a negative number
        raise CalcError("the result is not a real number")
    return result


def _bounded(value: Number) -> Number:
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise CalcError("the result is too large")
    elif not math.isfinite(value):
        raise CalcError("the result is too large")
    return value
