"""The form ``define`` of rule files: an operator's declaration, definition and shape.

    (define (WindowMax x (k i64) (s i64)) "(x; k, s) [*n, i] = max(k) x[*n, s*i + k]"
      :when ((= n (shape x)) (= a (- (vec-length n) 1)) (> s 0) (> k 0) (>= (vec-get n a) k))
      :shape (vec-set n a (+ 1 (/ (- (vec-get n a) k) s))))
    ->  (constructor WindowMax (Tensor i64 i64) Tensor)
        (rule ((= e (WindowMax x k s)) (= n (shape x)) …) ((set (shape e) …))
              :ruleset analysis-shape :name "window-max-shape")
        (rule ((= e (WindowMax x k s)) (= n (shape x)) …)
              ((definition-request e (vec-of x) (vec-of k s) "(x; k, s) [*n, i] = …"))
              :ruleset define :name "window-max-definition")

The right side is a comprehension, a term, or the request of a law, `(view "Permute" (vec-of x))`.
An argument without a sort is a tensor. The arguments of a comprehension are the operator's tensors
and integers (``i64`` and ``Ints``) in their order, unless ``:tensors`` and ``:numbers`` list other
ones. The variable ``e`` stands for the operator itself.

Also here: declarations for the rows of the operator table (``eqsynth/ir/operators.py``), and
definitions of the operators that map scalar functions (``eqsynth/ir/functions.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from eqsynth.ir.functions import FUNCTIONS
from eqsynth.ir.notation import parts_of
from eqsynth.ir.operators import OPERATORS, AttrKind, Operator
from eqsynth.rules.definitions import ATTRIBUTE_SORTS
from eqsynth.rules.forms import Form, nearest
from eqsynth.rules.options import Piece, in_place_of, options_of, words_of
from eqsynth.rules.sorts import Declarations, Signature

HEAD: Final = "define"
OPERATORS_HEAD: Final = "operators"
FUNCTIONS_HEAD: Final = "define-functions"
SORTS: Final[dict[AttrKind, str]] = {"int": "i64", "float": "f64", "str": "String", "ints": "Ints"}
_OPTIONS: Final = (":when", ":shape", ":tensors", ":numbers", ":numerics", ":ruleset", ":name")
_SORTS: Final = ("Tensors", "Tensor", *ATTRIBUTE_SORTS)
_LITERAL = re.compile(r'[+-]?\d|"')


def expand_define(form: Form, known: Declarations) -> tuple[str, list[Form]]:
    """Return the form's numerics class, or an empty text, and the forms that replace it.

    Raises:
        RuleError: something is missing or unknown, or the arguments don't fit the operator's
            declaration.
    """
    words = words_of(form)
    if len(words) < 2 or not words[0].text.strip("( )") or words[1].text.startswith(":"):
        expected = '(define (<Operator> <arguments>) "<comprehension>")'
        raise form.error("a definition has two sides", expected=expected,
                         hint="Write an operator with its arguments, then what it is.")  # fmt: skip
    left, right = words[:2]
    if not left.text.startswith("("):
        raise form.error(f"{left.text} has no parentheses", left.offset,
                         expected="(<Operator> <arguments>)", hint="Add them.")  # fmt: skip
    options = options_of(form, words[2:], _OPTIONS)
    name, *given = words_of(replace(form, text=f"(_ {left.text[1:]}"))
    given = [replace(arg, offset=arg.offset + left.offset - 2) for arg in given]
    arguments, signature = _arguments(form, name.text, left, given, known)
    own = f"{kebab(name.text)}-definition"
    own = options[":name"].text.strip('"') if ":name" in options else own
    when = options.get(":when")
    if when is not None and not when.text.startswith("("):
        raise form.error(":when has no facts", when.offset, expected=":when (<fact> ...)",
                         hint="Put parentheses around the facts.")  # fmt: skip
    pattern: list[str | Piece] = [f"(= e ({name.text}"]
    for argument, _ in arguments:
        pattern += [" ", argument]
    pattern.append("))")
    if when is not None:
        pattern += [" ", Piece(when.text[1:-1], when.offset + 1)]
    ruleset: str | Piece = options.get(":ruleset", HEAD)
    end: list[str | Piece] = [" :ruleset ", ruleset, f' :name "{own}")']
    if right.text.startswith('"'):
        if parts_of(right.text.strip('"')) is None:
            raise form.error("a definition can't be read: no (names) [head] = body", right.offset,
                             expected='"(a, b; p) [*i, j] = sum(k) a[*i, k] * b[k, j]"',
                             hint="see rules/README.md on definitions")  # fmt: skip
        over = [options.get(":tensors", _tensors(arguments)), " ",
                options.get(":numbers", _numbers(arguments))]  # fmt: skip
        says: list[str | Piece] = ["(definition-request e ", *over, " ", right, ")"]
        if not form.comment:
            form = replace(form, comment=" ".join(right.text.strip('"').split()))
    else:
        for option in (":tensors", ":numbers"):
            if option in options:
                raise form.error(f"{option} is of comprehensions", options[option].offset,
                                 hint="Leave it out.")  # fmt: skip
        law = right.text.strip("()").partition(" ")[0]
        if right.text.startswith("(") and law in known.laws:
            begin = right.offset + 1 + len(law)
            rest = Piece(right.text[1 + len(law) : -1], begin)
            says = [f"({known.laws[law].request} e", rest, ")"]
        else:
            says = ["(union e ", right, ")"]
    forms = []
    if signature is None:
        sorts = " ".join(sort for _, sort in arguments)
        forms.append(in_place_of(form, [f"(constructor {name.text} ({sorts}) Tensor)"]))
    if ":shape" in options:
        end_of_shape = f')) :ruleset analysis-shape :name "{kebab(name.text)}-shape")'
        forms.append(in_place_of(form, [
            "(rule (", *pattern, ") ((set (shape e) ", options[":shape"], end_of_shape,
        ]))  # fmt: skip
    forms.append(in_place_of(form, ["(rule (", *pattern, ") (", *says, ")", *end]))
    numerics = options[":numerics"].text.strip('"') if ":numerics" in options else ""
    return numerics, list(forms)


def kebab(name: str) -> str:
    """Return an operator's name in the style of rule names.

    >>> [kebab(name) for name in ("ReduceSum", "GeluTanh", "Conv2d", "G2BMM")]
    ['reduce-sum', 'gelu-tanh', 'conv2d', 'g2bmm']
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "-", name).lower()


def _arguments(
    form: Form, name: str, left: Piece, given: Sequence[Piece], known: Declarations
) -> tuple[list[tuple[Piece, str]], Signature | None]:
    """Return the arguments with their sorts, and the operator's signature if it is declared."""
    signature = known.signatures.get(name)
    if signature is not None and len(given) != len(signature.inputs):
        raise form.error(f"{name} has {len(signature.inputs)} arguments", left.offset,
                         expected=" ".join(signature.inputs), hint="Name each.")  # fmt: skip
    found: list[tuple[Piece, str]] = []
    for number, argument in enumerate(given):
        declared = signature.inputs[number] if signature is not None else "Tensor"
        sort, word = declared, argument
        parts = argument.text[1:-1].split() if argument.text.startswith("(") else []
        if parts and (signature is None or (len(parts) == 2 and parts[1] in _SORTS)):
            if len(parts) != 2 or parts[1] not in _SORTS:
                raise form.error(f"{argument.text} is no argument", argument.offset,
                                 expected=f"a name, or (<name> <sort>), of {', '.join(_SORTS)}",
                                 hint=nearest(parts[-1], _SORTS))  # fmt: skip
            word, sort = Piece(parts[0], argument.offset + 1), parts[1]
            if signature is not None and sort != declared:
                raise form.error(f"{name} is declared otherwise", argument.offset,
                                 expected=f"({word.text} {declared})",
                                 hint="Sorts are said by the first form.")  # fmt: skip
        elif signature is None and _LITERAL.match(argument.text):
            raise form.error(f"{name} isn't declared yet", argument.offset,
                             expected="a name, or (<name> <sort>)",
                             hint="Name all arguments in its first form.")  # fmt: skip
        if word.text == "e":
            raise form.error("e is the operator itself", word.offset, expected="another name",
                             hint="Rename the argument.")  # fmt: skip
        found.append((word, sort))
    return found, signature


def _tensors(arguments: Sequence[tuple[Piece, str]]) -> str:
    if any(sort == "Tensors" for _, sort in arguments):
        return next(word.text for word, sort in arguments if sort == "Tensors")
    return _vector([word.text for word, sort in arguments if sort == "Tensor"])


def _numbers(arguments: Sequence[tuple[Piece, str]]) -> str:
    """Return the text of a vector of all integer arguments that are variables."""
    parts: list[str] = []
    single: list[str] = []
    for word, sort in arguments:
        if sort == "i64" and not _LITERAL.match(word.text):
            single.append(word.text)
        elif sort == "Ints":
            parts += [_vector(single)] * bool(single) + [word.text]
            single = []
    parts += [_vector(single)] * (bool(single) or not parts)
    return parts[0] if len(parts) == 1 else f"(vec-append {' '.join(parts)})"


def _vector(words: Sequence[str]) -> str:
    return f"(vec-of {' '.join(words)})" if words else "(vec-empty)"


def declarations(form: Form) -> Iterator[Form]:
    """Yield a declaration for each table row: ``(constructor Cast (Tensor String) Tensor)``."""
    for row in OPERATORS.values():
        yield in_place_of(form, [f"(constructor {row.name} ({' '.join(sorts_of(row))}) Tensor)"])


def sorts_of(row: Operator) -> tuple[str, ...]:
    """Return the sorts of an operator's arguments.

    >>> sorts_of(OPERATORS["Concat"]), sorts_of(OPERATORS["Softmax"])
    (('Tensors', 'i64'), ('Tensor', 'i64'))
    """
    tensors = ("Tensors",) if row.arity is None else ("Tensor",) * row.arity
    return (*tensors, *(SORTS[kind] for _, kind in row.attrs))


def functions(form: Form) -> Iterator[Form]:
    """Yield a definition for each operator that maps a scalar function:
    ``(define (Silu a) "(a) [*n] = silu(a[^n])")``."""
    for row in OPERATORS.values():
        if row.function in FUNCTIONS:
            names = "abc"[: FUNCTIONS[row.function].arity]
            keyword = "_" if row.function in ("and", "or", "not") else ""
            read = ", ".join(f"{name}[{'*' if len(names) == 1 else '^'}n]" for name in names)
            text = f"({', '.join(names)}) [*n] = {row.function}{keyword}({read})"
            made = in_place_of(form, [f'(define ({row.name} {" ".join(names)}) "{text}")'])
            yield replace(made, comment=f"{row.name}: {text}")
