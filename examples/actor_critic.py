"""Learns to balance a pole on a cart: an actor chooses pushes, and a critic says what to expect.

One decorated function plays an episode and learns from it. The episode is a Python `for` over
`tg.range` that breaks when the pole falls, so its length is found by the run, and so are the sizes
of what follows: the `tg.TensorArray`s that grew, the returns by `tg.scan`, the loss, its gradients
through network and loop, and the update.

    python examples/actor_critic.py --out out

writes episodes.png. The steps of an episode are its reward: some 20 at first, and 500 is the most.
After 250 to 1,000 episodes, by the seed, the mean of the last hundred reaches 475: the end.
"""

import sys
from typing import NamedTuple

import common
import matplotlib

matplotlib.use("Agg")  # pictures go to files; no screen is needed

import numpy as np
from matplotlib import pyplot as plt
from tqdm import tqdm

import tracegraph as tg

# The cart and its pole, as Barto, Sutton and Anderson described them in 1983; metres, kg, seconds.
GRAVITY, CART_MASS, POLE_MASS, HALF_POLE = 9.8, 1.0, 0.1, 0.5
FORCE, TIME_STEP = 10.0, 0.02
FARTHEST, STEEPEST = 2.4, np.radians(12.0)  # where an episode ends

MOST_STEPS = 500
HIDDEN = 128
DISCOUNT = 0.99  # of a reward one step later
RECENT = 100  # episodes of the running reward
GOAL = 475.0  # the running reward at which the pole counts as balanced


class Episode(NamedTuple):
    """What was played: one entry for each step."""

    probabilities: tg.Tensor  # of the actions that were taken
    values: tg.Tensor  # the rewards to come, as the critic expects them
    rewards: tg.Tensor


def parsed_arguments(arguments):
    parser = common.Parser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--episodes", type=common.positive, default=1000, help="at the most; default: 1000"
    )
    return parser.options(arguments)


def pushed(state, action):
    """State (place, speed, angle, its speed) after a push to the left (0) or the right (1); and
    whether the pole has fallen or the cart has left the track."""
    _, speed, angle, turning = tg.unstack(state)
    force = tg.where(action == 1, FORCE, -FORCE)
    mass = CART_MASS + POLE_MASS
    sine, cosine = tg.sin(angle), tg.cos(angle)
    swing = (force + POLE_MASS * HALF_POLE * turning**2 * sine) / mass
    inertia = HALF_POLE * (4.0 / 3.0 - POLE_MASS * cosine**2 / mass)
    angular = (GRAVITY * sine - cosine * swing) / inertia
    linear = swing - POLE_MASS * HALF_POLE * angular * cosine / mass
    rates = tg.stack([speed, linear, turning, angular])
    state = state + TIME_STEP * rates
    return state, (tg.abs(state[0]) > FARTHEST) | (tg.abs(state[2]) > STEEPEST)


class ActorCritic(tg.Module):
    """Scores for two actions, and the rewards to come, from a state."""

    def __init__(self):
        super().__init__()
        self.common = tg.layers.Dense(HIDDEN, activation="relu")
        self.actor = tg.layers.Dense(2)
        self.critic = tg.layers.Dense(1)

    def __call__(self, state):
        hidden = self.common(state[tg.newaxis])
        return self.actor(hidden), self.critic(hidden)[0, 0]


def played(model, start):
    """Plays until the pole falls."""
    probabilities = tg.TensorArray(tg.float32, size=0, dynamic_size=True)
    values = tg.TensorArray(tg.float32, size=0, dynamic_size=True)
    rewards = tg.TensorArray(tg.float32, size=0, dynamic_size=True)
    state = start
    for t in tg.range(MOST_STEPS):
        scores, value = model(state)
        action = tg.random.categorical(scores, 1, dtype=tg.int32)[0, 0]
        probabilities = probabilities.write(t, tg.nn.softmax(scores)[0, action])
        values = values.write(t, value)
        state, done = pushed(state, action)
        rewards = rewards.write(t, 1.0)
        if done:
            break
    return Episode(probabilities.stack(), values.stack(), rewards.stack())


def returns_of(rewards):
    """For each step the rewards from there on, discounted, with mean 0 and deviation 1."""
    returns = tg.scan(
        lambda later, reward: reward + DISCOUNT * later, rewards, initializer=0.0, reverse=True
    )
    return (returns - tg.reduce_mean(returns)) / (tg.math.reduce_std(returns) + 1e-6)


def loss_of(episode):
    """Of the actor, which is to do what turned out better than expected, and of the critic."""
    returns = returns_of(episode.rewards)
    surprise = tg.stop_gradient(returns - episode.values)
    actor = -tg.reduce_sum(tg.math.log(episode.probabilities) * surprise)
    error = tg.abs(returns - episode.values)
    critic = tg.reduce_sum(tg.where(error < 1.0, 0.5 * error**2, error - 0.5))  # Huber's loss
    return actor + critic


def make_train_step(model, optimizer):
    """Episode, gradients and update in one function; lengths are padded to few."""

    @tg.function(bucket_sizes="powers_of_two")
    def train_step():
        start = tg.random.uniform([4], -0.05, 0.05)
        with tg.GradientTape() as tape:
            episode = played(model, start)
            loss = loss_of(episode)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return tg.reduce_sum(episode.rewards)

    return train_step


def train(train_step, episodes):
    """Plays until the mean of the last rewards reaches the goal; returns the reward of each."""
    rewards = []
    with tqdm(range(episodes), unit="episode", disable=None) as progress:  # silent in a file
        for _ in progress:
            rewards.append(float(train_step()))
            running = np.mean(rewards[-RECENT:])
            progress.set_postfix(reward=f"{rewards[-1]:.0f}", running=f"{running:.0f}")
            if len(rewards) >= RECENT and running >= GOAL:
                break
    return np.array(rewards)


def running_means(rewards):
    """The mean of the last `RECENT` rewards, or of all so far."""
    sums = np.concatenate([[0.0], np.cumsum(rewards)])
    last = np.arange(1, len(rewards) + 1)
    first = np.maximum(last - RECENT, 0)
    return (sums[last] - sums[first]) / (last - first)


def draw_episodes(rewards, path):
    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    episodes = np.arange(1, len(rewards) + 1)
    axes.plot(episodes, rewards, ".", color="tab:blue", markersize=2, label="episode")
    label = f"mean of the last {RECENT}"
    axes.plot(episodes, running_means(rewards), color="tab:orange", label=label)
    axes.axhline(GOAL, color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel="episode", ylabel="steps until the pole falls", title="Actor and critic")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main(arguments=None):
    options = parsed_arguments(arguments)
    tg.random.set_seed(options.seed)
    train_step = make_train_step(ActorCritic(), tg.optimizers.Adam(learning_rate=0.01))
    rewards = train(train_step, options.episodes)
    draw_episodes(rewards, options.out / "episodes.png")
    means = running_means(rewards)
    early = min(RECENT, len(rewards))
    print(f"mean reward of the first {early} episodes: {means[early - 1]:.1f}")
    print(f"mean reward of the last {early} of {len(rewards)} episodes: {means[-1]:.1f}")
    print(f"lengths of the episodes: {options.out}")


if __name__ == "__main__":
    main(sys.argv[1:])
