"""Histories of made-up users, as a recommender sees them: very different lengths, interests, popular items, habits.

Every user has two or three topics of interest out of TOPICS, with Dirichlet(1) weights, and a history of log-normal length
(median 90, sigma 0.8, clipped to 8 and the context). Events come in sessions: with probability 1/8 a new session begins, whose
topic is drawn by the user's weights. With probability 0.35 an event is habit: the item that followed the last time when the
user was at the present item, if there was one. Else it is an item of the session's topic, the i-th most popular with
probability proportional to 1 / i. To predict the next event a model has to find topics in the history and to look habits up in
it; the first needs broad attention, the second a sharp one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

TOPICS, ITEMS_PER_TOPIC = 32, 16
ITEMS = TOPICS * ITEMS_PER_TOPIC
NEW_SESSION, HABIT = 1 / 8, 0.35
MEDIAN_LENGTH, LENGTH_SIGMA, SHORTEST = 90, 0.8, 8


@dataclass(frozen=True)
class Users:
    """Histories, padded.

    Attributes:
        events: (users, context + 1) int64 items; what lies after the end of a history means nothing.
        lengths: (users,) int64 events of each.
        validation: how many of them, the last ones, are not trained on.
        about: what they are.
    """

    events: torch.Tensor
    lengths: torch.Tensor
    validation: int
    about: dict[str, str | int]


def make_users(count: int = 24576, context: int = 256, validation: int = 480, seed: int = 0) -> Users:
    """The same users on every machine: NumPy's PCG64 with a seed of its own.

    Args:
        count: users in all.
        context: events of the longest history, less one.
        validation: users that are not trained on.
        seed: of the users, not of the training.
    """
    rng = np.random.default_rng(seed)
    lengths = (
        np.exp(rng.normal(np.log(MEDIAN_LENGTH), LENGTH_SIGMA, count)).astype(np.int64).clip(SHORTEST, context + 1)
    )
    interests, weights = _interests(rng, count)
    popularity = np.cumsum(1 / np.arange(1, ITEMS_PER_TOPIC + 1))
    popularity /= popularity[-1]
    everyone = np.arange(count)
    events = np.zeros((count, context + 1), np.int64)
    followed = np.full((count, ITEMS), -1, np.int64)  # the item that came after this one the last time
    topic, item = _topic(rng, interests, weights), np.full(count, -1)
    for position in range(context + 1):
        topic = np.where(rng.random(count) < NEW_SESSION, _topic(rng, interests, weights), topic)
        chosen = topic * ITEMS_PER_TOPIC + np.searchsorted(popularity, rng.random(count))
        habit = followed[everyone, item]
        use_habit = (rng.random(count) < HABIT) & (habit >= 0) & (position > 0)
        chosen = np.where(use_habit, habit, chosen)
        if position:
            followed[everyone, item] = chosen
        events[:, position] = item = chosen
    about: dict[str, str | int] = {
        "corpus": f"{count} synthetic users, {ITEMS} items in {TOPICS} topics, histories of {SHORTEST} to {context + 1} events",
        "events": int(lengths.sum()), "median_length": int(np.median(lengths)), "seed": seed,
    }  # fmt: skip
    return Users(torch.from_numpy(events), torch.from_numpy(lengths), validation, about)


def _interests(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """(users, 3) topics and their cumulative weights; every second user has two topics only."""
    interests = rng.integers(0, TOPICS, (count, 3))
    weights = rng.dirichlet(np.ones(3), count)
    weights[::2, 2] = 0.0
    cumulative = weights.cumsum(1)
    return interests, cumulative / cumulative[:, -1:]


def _topic(rng: np.random.Generator, interests: np.ndarray, cumulative: np.ndarray) -> np.ndarray:
    """(users,) one topic of each, by weight."""
    choice = (rng.random(len(interests))[:, None] > cumulative).sum(1).clip(max=2)
    return interests[np.arange(len(interests)), choice]
