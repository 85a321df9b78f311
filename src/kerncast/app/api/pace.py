"""The rate of progress, and the time that is left."""

from __future__ import annotations

import time

LIVE_SECONDS = 0.25
# The rate is over the last half minute: the time left follows a change of problem size, but not every chunk.
PACE_SECONDS = 30.0


def clock(seconds: float) -> str:
    """`1:02:03`: hours, minutes, seconds."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


class Pace:
    """Records how much was done when, and estimates the time left."""

    def __init__(self) -> None:
        self.began, self.guessed = time.monotonic(), 0.0
        self.points: list[tuple[float, float]] = [(self.began, 0.0)]

    def next(self) -> Pace:
        """The pace of the next part; a guess holds until something is measured."""
        found = Pace()
        if len(self.points) == 1:
            found.guessed = max(0.0, self.guessed - (found.began - self.began))
        return found

    def add(self, amount: float) -> None:
        """Record that `amount` is done by now."""
        now = time.monotonic()
        if len(self.points) > 1 and now - self.points[-2][0] < LIVE_SECONDS:
            self.points.pop()
        self.points.append((now, amount))
        while len(self.points) > 2 and now - self.points[0][0] > PACE_SECONDS:
            self.points.pop(0)

    def rate(self) -> float:
        """The recent amount per second."""
        (then, before), (now, after) = self.points[0], self.points[-1]
        return (after - before) / (now - then) if now > then else 0.0

    def left(self, target: float | None) -> tuple[float | None, bool]:
        """The seconds until `target`, None if nobody can say; and whether they follow from the recent rate, or are a guess."""
        now, (at, amount), rate = time.monotonic(), self.points[-1], self.rate()
        if target and amount >= target:
            return 0.0, True
        if target is not None and rate > 0:
            return max(0.0, (target - amount) / rate - (now - at)), True
        spent = now - self.began
        if target is not None and amount > 0 and spent > 0:  # no recent progress
            return (target - amount) * spent / amount, False
        return (self.guessed - spent, False) if spent < self.guessed else (None, False)


def left_in_words(seconds: float | None, measured: bool) -> str:
    """The time left, with `about` if it is only a guess."""
    return "unknown" if seconds is None else clock(seconds) if measured else f"about {clock(seconds)}"
