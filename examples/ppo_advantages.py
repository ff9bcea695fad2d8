"""PPO on a toy: advantages for all environments and steps in one call, beside the usual loops.

A point on a line is pushed left or right and should stay in the middle. An episode is terminated
where the point leaves the line, and truncated after fifty steps: then the state it stopped in still
has a value. Rollouts lie as (steps, environments), the way the common libraries store them.

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
    actions: np.ndarray
    chances: np.ndarray  # of pushing right
    rewards: np.ndarray
    values: np.ndarray
    next_values: np.ndarray
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

    def play(self, steps: int, policy: np.ndarray, critic: np.ndarray) -> Rollout:
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
            next_value = features_of(place) @ critic
            taken.append(
                (seen, action, chance, reward, seen @ critic, next_value, terminated, truncated)
            )
            ended = terminated | truncated
            fresh = self.random.uniform(-1, 1, len(chance)).astype(np.float32)
            self.place, self.age = np.where(ended, fresh, place), np.where(ended, 0, self.age)
        return Rollout(*(np.stack(column) for column in zip(*taken, strict=True)))


Advantages = Callable[[Rollout], tuple[np.ndarray, np.ndarray]]


def ours(r: Rollout) -> tuple[np.ndarray, np.ndarray]:
    flags = {"terminated": r.terminated, "truncated": r.truncated}
    return pb.gae(r.rewards, r.values, r.next_values, gamma=GAMMA, lam=LAM, axis=0, **flags)


def one_by_one(r: Rollout) -> tuple[np.ndarray, np.ndarray]:
    """Plain Python: every step of every environment."""
    steps, environments = r.rewards.shape
    advantages = np.empty_like(r.rewards)
    for k in range(environments):
        ahead = 0.0
        for t in reversed(range(steps)):
            coming = 0.0 if r.terminated[t, k] else GAMMA * r.next_values[t, k]
            delta = r.rewards[t, k] + coming - r.values[t, k]
            ended = r.terminated[t, k] or r.truncated[t, k]
            ahead = advantages[t, k] = delta + (0.0 if ended else GAMMA * LAM * ahead)
    return advantages, advantages + r.values


def step_by_step(r: Rollout) -> tuple[np.ndarray, np.ndarray]:
    """NumPy: a loop over the steps, all environments at once."""
    delta = r.rewards + GAMMA * r.next_values * ~r.terminated - r.values
    factor = (GAMMA * LAM * ~(r.terminated | r.truncated)).astype(np.float32)
    advantages, ahead = np.empty_like(delta), np.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        ahead = advantages[t] = delta[t] + factor[t] * ahead
    return advantages, advantages + r.values


def update(policy: np.ndarray, r: Rollout, advantages: np.ndarray, epochs: int = 4) -> np.ndarray:
    """Ascent on PPO's clipped objective."""
    a = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    old = np.where(r.actions, r.chances, 1 - r.chances)
    for _ in range(epochs):
        chance = 1 / (1 + np.exp(-r.features @ policy))
        ratio = np.where(r.actions, chance, 1 - chance) / old
        clipped = ((a > 0) & (ratio > 1 + CLIP)) | ((a < 0) & (ratio < 1 - CLIP))
        slope = np.where(clipped, 0.0, ratio * a) * (r.actions - chance)
        policy = policy + np.einsum("te,tef->f", slope, r.features) / slope.size
    return policy.astype(np.float32)


def train(environments: int, steps: int, rounds: int, gae: Advantages) -> tuple[list[float], float]:
    """Mean reward of every round, and the seconds of the shortest."""
    line = Line(environments)
    policy, critic = np.zeros(3, np.float32), np.zeros(3, np.float32)
    rewards, taken = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        rollout = line.play(steps, policy, critic)
        advantages, returns = gae(rollout)
        policy = update(policy, rollout, advantages)
        flat = rollout.features.reshape(-1, 3)
        critic = np.linalg.lstsq(flat, returns.ravel(), rcond=None)[0].astype(np.float32)
        taken.append(time.perf_counter() - began)
        rewards.append(float(rollout.rewards.mean()))
    return rewards, min(taken)


def main(environments: int = 64, steps: int = 512, rounds: int = 12) -> list[float]:
    """Train, print, and return the mean reward of every round."""
    rewards, whole = train(environments, steps, rounds, ours)
    for number, mean in enumerate(rewards):
        print(f"round {number:2d}  mean reward {mean:.3f}")
    rollout = Line(environments).play(steps, np.zeros(3, np.float32), np.ones(3, np.float32))
    expected = one_by_one(rollout)
    for way in (ours, step_by_step):
        for got, wanted in zip(way(rollout), expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    ways = (ours, step_by_step, one_by_one)
    mine, loop, slow = in_turns(*(lambda way=way: way(rollout) for way in ways))
    _, whole_slow = train(environments, steps, 2, one_by_one)
    _, whole_loop = train(environments, steps, rounds, step_by_step)
    print(
        f"advantages of {steps}x{environments}: pullback {mine * 1e3:.2f} ms, "
        f"NumPy by steps {loop * 1e3:.2f} ms ({loop / mine:.1f} times), "
        f"Python {slow * 1e3:.0f} ms ({slow / mine:.0f} times)"
    )
    print(
        f"a round of training, rollout and update included: pullback {whole * 1e3:.1f} ms, "
        f"NumPy by steps {whole_loop * 1e3:.1f} ms ({whole_loop / whole:.2f} times), "
        f"Python {whole_slow * 1e3:.0f} ms ({whole_slow / whole:.1f} times)"
    )
    return rewards


if __name__ == "__main__":
    main()
