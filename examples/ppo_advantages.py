"""PPO on a toy problem: advantages for all environments and steps in one call.

A point on a line is pushed left or right and should stay in the middle. An episode terminates when
the point leaves the line, and is truncated after fifty steps; in that case the state it stopped in
still has a value. Rollouts have the shape (steps, environments), as in the common libraries. The
advantages are recomputed with the current critic in every pass over a rollout, because stale ones
cost reward. The usual ways to compute them are timed alongside: Python loops, and NumPy step by
step.

    python examples/ppo_advantages.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from timing import in_turns

import pullback as pb

GAMMA, LAM, CLIP = 0.98, 0.95, 0.2
EDGE, LONGEST = 3.0, 50


@dataclass
class Rollout:
    features: np.ndarray  # (steps, environments, features)
    next_features: np.ndarray
    actions: np.ndarray
    chances: np.ndarray  # of pushing right
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def features_of(place: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(place), place, place * place], -1)


class Line:
    """Many points on the line at once; one whose episode ends begins again."""

    def __init__(self, environments: int, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.place = self.random.uniform(-1, 1, environments).astype(np.float32)
        self.age = np.zeros(environments, np.int64)

    def play(self, steps: int, policy: np.ndarray) -> Rollout:
        taken = []
        for _ in range(steps):
            seen = features_of(self.place)
            chance = 1 / (1 + np.exp(-seen @ policy))
            action = self.random.random(len(chance)) < chance
            push = np.where(action, 0.3, -0.3) + 0.2 * self.random.standard_normal(len(chance))
            place = (self.place + push).astype(np.float32)
            self.age += 1
            terminated = np.abs(place) > EDGE
            truncated = (self.age >= LONGEST) & ~terminated
            reward = np.where(terminated, -10.0, 1.0 - np.abs(place)).astype(np.float32)
            # The state a step leads to, before another episode begins in its place.
            following = features_of(place)
            taken.append((seen, following, action, chance, reward, terminated, truncated))
            ended = terminated | truncated
            fresh = self.random.uniform(-1, 1, len(chance)).astype(np.float32)
            self.place, self.age = np.where(ended, fresh, place), np.where(ended, 0, self.age)
        return Rollout(*(np.stack(column) for column in zip(*taken, strict=True)))


# Of a rollout, the values of its states and of those they lead to: advantages and returns.
Pair = tuple[np.ndarray, np.ndarray]
Advantages = Callable[[Rollout, np.ndarray, np.ndarray], Pair]


def ours(r: Rollout, values: np.ndarray, next_values: np.ndarray) -> Pair:
    flags = {"terminated": r.terminated, "truncated": r.truncated}
    return pb.gae(r.rewards, values, next_values, gamma=GAMMA, lam=LAM, axis=0, **flags)


def one_by_one(r: Rollout, values: np.ndarray, next_values: np.ndarray) -> Pair:
    """Plain Python: every step of every environment."""
    steps, environments = r.rewards.shape
    advantages = np.empty_like(r.rewards)
    for k in range(environments):
        ahead = 0.0
        for t in reversed(range(steps)):
            coming = 0.0 if r.terminated[t, k] else GAMMA * next_values[t, k]
            delta = r.rewards[t, k] + coming - values[t, k]
            ended = r.terminated[t, k] or r.truncated[t, k]
            ahead = advantages[t, k] = delta + (0.0 if ended else GAMMA * LAM * ahead)
    return advantages, advantages + values


def step_by_step(r: Rollout, values: np.ndarray, next_values: np.ndarray) -> Pair:
    """NumPy: a loop over the steps, all environments at once."""
    delta = r.rewards + GAMMA * next_values * ~r.terminated - values
    factor = (GAMMA * LAM * ~(r.terminated | r.truncated)).astype(np.float32)
    advantages, ahead = np.empty_like(delta), np.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        ahead = advantages[t] = delta[t] + factor[t] * ahead
    return advantages, advantages + values


def learn(
    policy: np.ndarray, critic: np.ndarray, r: Rollout, gae: Advantages, epochs: int = 4
) -> tuple[np.ndarray, np.ndarray]:
    """Passes over a rollout: advantages, a step on PPO's clipped objective, and a new critic."""
    flat = r.features.reshape(-1, r.features.shape[-1])
    squares = flat.T @ flat
    old = np.where(r.actions, r.chances, 1 - r.chances)
    for _ in range(epochs):
        advantages, returns = gae(r, r.features @ critic, r.next_features @ critic)
        a = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        chance = 1 / (1 + np.exp(-(r.features @ policy)))
        ratio = np.where(r.actions, chance, 1 - chance) / old
        clipped = ((a > 0) & (ratio > 1 + CLIP)) | ((a < 0) & (ratio < 1 - CLIP))
        slope = np.where(clipped, 0.0, ratio * a) * (r.actions - chance)
        policy = (policy + slope.ravel() @ flat / slope.size).astype(np.float32)
        critic = np.linalg.solve(squares, flat.T @ returns.ravel()).astype(np.float32)
    return policy, critic


def train(environments: int, steps: int, rounds: int, gae: Advantages) -> tuple[list[float], float]:
    """Mean reward of every round, and the seconds of the shortest."""
    line = Line(environments)
    policy, critic = np.zeros(3, np.float32), np.zeros(3, np.float32)
    rewards, taken = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        rollout = line.play(steps, policy)
        policy, critic = learn(policy, critic, rollout, gae)
        taken.append(time.perf_counter() - began)
        rewards.append(float(rollout.rewards.mean()))
    return rewards, min(taken)


def shown(what: str, mine: float, loop: float, slow: float) -> str:
    return (
        f"{what}: pullback {mine * 1e3:.2f} ms, NumPy by steps {loop * 1e3:.2f} ms "
        f"({loop / mine:.2f} times), Python {slow * 1e3:.0f} ms ({slow / mine:.1f} times)"
    )


def main(environments: int = 64, steps: int = 512, rounds: int = 12) -> list[float]:
    """Train, print, and return the mean reward of every round."""
    rewards, whole = train(environments, steps, rounds, ours)
    for number, mean in enumerate(rewards):
        print(f"round {number:2d}  mean reward {mean:.3f}")
    policy, critic = np.zeros(3, np.float32), np.ones(3, np.float32)
    rollout = Line(environments).play(steps, policy)
    given = rollout, rollout.features @ critic, rollout.next_features @ critic
    expected = one_by_one(*given)
    for way in (ours, step_by_step):
        for got, wanted in zip(way(*given), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    ways = (ours, step_by_step, one_by_one)
    alone = in_turns(*(lambda way=way: way(*given) for way in ways))
    learning = in_turns(*(lambda way=way: learn(policy, critic, rollout, way) for way in ways))
    _, whole_loop = train(environments, steps, rounds, step_by_step)
    _, whole_slow = train(environments, steps, 2, one_by_one)
    print(shown(f"advantages of {steps}x{environments}", *alone))
    print(shown("learning from a rollout in four passes", *learning))
    print(shown("a round, with a rollout simulated in Python", whole, whole_loop, whole_slow))
    return rewards


if __name__ == "__main__":
    main()
