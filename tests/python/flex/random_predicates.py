# SPDX-License-Identifier: Apache-2.0
"""Random predicates: comparisons of random functions of the two tokens, joined by boolean operators."""

import operator
import random

import torch

COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
LIMIT = 2**63 - 1


class Predicate:
    """One mask_mod, drawn from a seed; `sizes` are batch, heads, rows and columns."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        most = self.draw.choice((40, 40, 40, 140))
        rows, columns = self.draw.randint(1, most), self.draw.randint(1, most)
        self.sizes = (self.draw.randint(1, 2), self.draw.randint(1, 2), rows, columns)
        self.longest = max(rows, columns)
        self.visible = self.boolean(self.draw.choice((0, 1, 1, 2, 2, 3)))

    def mask_mod(self, b, h, q, kv):
        return self.visible(b, h, q, kv)

    def integers(self, low, high, *shape):
        return torch.randint(low, high, shape, generator=self.generator)

    def boolean(self, depth):
        """A function (b, h, q, kv) -> bool; nested `depth` times."""
        if depth == 0:
            return self.draw.choice((self.order, self.order, self.equality, self.fact, self.distance, self.divided))()
        kind = self.draw.choice(("and", "and", "and", "or", "or", "not", "xor", "where", "equal"))
        x, y, z = (self.boolean(depth - 1) for _ in range(3))
        return {
            "and": lambda *i: x(*i) & y(*i),
            "or": lambda *i: torch.logical_or(x(*i), y(*i)),
            "not": lambda *i: ~x(*i),
            "xor": lambda *i: x(*i) ^ y(*i),
            "where": lambda *i: torch.where(x(*i), y(*i), z(*i)),
            "equal": lambda *i: x(*i) == y(*i),
        }[kind]

    def numbers(self):
        """Numbers of a token, [longest] or [batch, longest] or [heads, longest], and how they are read."""
        n = self.longest
        kind = self.draw.choice(("index", "runs", "rising", "falling", "restarting", "any", "floats"))
        lead = self.draw.choice(((), (), (self.sizes[0],), (self.sizes[1],)))
        of_head = lead == (self.sizes[1],)
        if kind == "index":
            return lambda b, h, at: at
        values = {
            "runs": lambda: self.integers(-1, 3, *lead, n).repeat_interleave(self.draw.randint(1, 9), -1)[..., :n],
            "rising": lambda: self.integers(0, 3, *lead, n).cumsum(-1),
            "falling": lambda: -self.integers(0, 3, *lead, n).cumsum(-1),
            "restarting": lambda: torch.arange(n).expand(*lead, n) % self.draw.randint(2, 30),
            "any": lambda: self.integers(0, self.draw.choice((2, 5, 50)), *lead, n),
            "floats": lambda: torch.randn(*lead, n, generator=self.generator).sort().values.round(decimals=1),
        }[kind]()
        values = values.to(self.draw.choice((torch.int32, torch.int64))) if kind != "floats" else values
        if lead:
            return lambda b, h, at: values[h if of_head else b, at]
        return lambda b, h, at: values[at]

    def order(self):
        f, g, compare = self.numbers(), self.numbers(), self.draw.choice(COMPARISONS[:4])
        if self.draw.random() < 0.5:
            f = g = self.draw.choice((f, lambda b, h, at: at))
        return lambda b, h, q, kv: compare(f(b, h, q), g(b, h, kv))

    def equality(self):
        f, g, compare = self.numbers(), self.numbers(), self.draw.choice((*COMPARISONS[4:], operator.eq, operator.eq))
        g = f if self.draw.random() < 0.8 else g
        return lambda b, h, q, kv: compare(f(b, h, q), g(b, h, kv))

    def fact(self):
        flags = self.integers(0, 2, self.longest).repeat_interleave(self.draw.randint(1, 20))[: self.longest].bool()
        return self.draw.choice(
            (lambda b, h, q, kv: flags[q], lambda b, h, q, kv: flags[kv], lambda b, h, q, kv: flags[q] != flags[kv])
        )

    def distance(self):
        """A sum of both tokens against a number, a number of a token, or one of a batch entry or head."""
        compare, w = self.draw.choice(COMPARISONS), self.draw.choice((0, 1, 3, 7, 2.5, -2, LIMIT))
        scale, shift = self.draw.choice((1, 1, 1, 2, -1)), self.draw.choice((0, 0, 5))
        of_token = self.integers(-3, 12, self.longest)
        reach = torch.tensor([2, LIMIT])
        bound = self.draw.choice(
            (
                lambda b, h, q, kv: w,
                lambda b, h, q, kv: of_token[q],
                lambda b, h, q, kv: of_token[kv] + q,
                lambda b, h, q, kv: reach[h],
                lambda b, h, q, kv: torch.maximum(of_token[q], of_token[kv]),
            )
        )
        absolute = self.draw.random() < 0.4
        return lambda b, h, q, kv: compare(
            abs(q - scale * kv + shift) if absolute else q - scale * kv + shift, bound(b, h, q, kv)
        )

    def divided(self):
        m, c = self.draw.randint(1, 20), self.draw.randint(0, 4)
        compare, same = self.draw.choice(COMPARISONS), self.draw.choice(COMPARISONS[4:])
        return self.draw.choice(
            (
                lambda b, h, q, kv: compare(q // m, kv // m),
                lambda b, h, q, kv: compare((q - kv) // m, c),
                lambda b, h, q, kv: same((q - kv) % m, c),
                lambda b, h, q, kv: compare(q % m, kv % m),
                lambda b, h, q, kv: compare(torch.minimum(q, kv + c), m),
            )
        )
