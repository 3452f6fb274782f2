"""Small changes of the product: Cosmic Ray's for Python, and a few of our own for the chart's templates."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

# One change of each kind: others of it say the same, or are no change (`==` and `is` of None).
_SWAPS = {
    "Binary": "Add_Sub Sub_Add Mul_FloorDiv Div_Mul FloorDiv_Mul Mod_Mul BitOr_BitAnd BitAnd_BitOr",
    "Comparison": "Eq_NotEq NotEq_Eq Lt_LtE LtE_Lt Gt_GtE GtE_Gt Is_IsNot IsNot_Is",
    "Unary": "Delete_USub Delete_Not",
}
_KINDS = frozenset(kind for kinds in _SWAPS.values() for kind in kinds.split())
# Of a Helm template: what is there, and what is made of it.
_TEMPLATE = {
    r"\btrue\b": "false",
    r"\bfalse\b": "true",
    r"\{\{- if (?!not )": "{{- if not ",
    r"\beq\b": "ne",
    r"\bdrop: \[ALL\]": "drop: []",
}


@dataclass(frozen=True, slots=True, order=True)
class CodeMutation:
    """The ``occurrence``-th change of an operator in a file of the tree, and the line that it is in."""

    file: str
    line: int
    operator: str
    occurrence: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.operator.rpartition('/')[2]} #{self.occurrence}"

    def applied(self, text: str) -> str:
        """The text of the file after the change."""
        if self.operator in _TEMPLATE:
            found = list(re.finditer(self.operator, text))[self.occurrence]
            return text[: found.start()] + _TEMPLATE[self.operator] + text[found.end() :]
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        return str(mutate_code(text, get_operator(self.operator)(), self.occurrence))


def is_meant(operator: str) -> bool:
    """Whether this kind of change is one of ours."""
    name = operator.rpartition("/")[2]
    if name.startswith("Replace") and "Operator_" in name:
        return name.partition("Operator_")[2] in _KINDS
    return name not in {"ExceptionReplacer", "RemoveDecorator"}


def code_mutations(root: Path, name: str) -> Iterator[CodeMutation]:
    """Every change of our kinds that changes what the file of the tree does."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator, operator_names

    tree = get_ast_from_path(root / name)
    dull = dull_lines((root / name).read_text(encoding="utf-8"))
    for kind in filter(is_meant, operator_names()):
        if get_operator(kind).arguments():
            continue
        operator = get_operator(kind)()
        positions = (start for node in ast_nodes(tree) for start, _ in operator.mutation_positions(node))
        for occurrence, (line, column) in enumerate(positions):
            if not any(begin <= (line, column) < end for begin, end in dull):
                yield CodeMutation(name, line, kind, occurrence)


def template_mutations(root: Path, name: str) -> Iterator[CodeMutation]:
    """Every change of a template of the chart, comments left out."""
    text = (root / name).read_text(encoding="utf-8")
    comments = [found.span() for found in re.finditer(r"\{\{-? ?/\*.*?\*/|(?m:^ *#[^\n]*$)", text, re.DOTALL)]
    for operator in _TEMPLATE:
        for occurrence, found in enumerate(re.finditer(operator, text)):
            if not any(begin <= found.start() < end for begin, end in comments):
                yield CodeMutation(name, text.count("\n", 0, found.start()) + 1, operator, occurrence)


def dull_lines(text: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where annotations, docstrings, log calls and what only type checkers read begin and end; and whether
    `zip` is to be strict, which says what its arguments are anyway."""
    found: list[ast.expr | ast.stmt | None] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.AnnAssign | ast.arg):
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node.returns)
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            found.append(node.value)
        elif is_dull(node):
            found.append(node)
    return [
        ((each.lineno, each.col_offset), (each.end_lineno or 0, each.end_col_offset or 0))
        for each in found
        if each is not None
    ]


def is_dull(node: ast.AST) -> TypeGuard[ast.expr | ast.stmt]:
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).lower().startswith(("logger.", "_log."))
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
