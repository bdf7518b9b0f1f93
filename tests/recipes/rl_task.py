"""A reward that differs between the samples of a policy that has learned nothing."""

from monarch_recipes.rollouts.problems import RewardedProblem


def reward(problem: RewardedProblem, completion: str) -> float:
    """Its length."""
    return float(len(completion))
