"""A reward that differs between the samples of a policy that has learned nothing."""

from monarch_recipes.rollouts.problems import Problem


def reward(problem: Problem, completion: str) -> float:
    """Its length."""
    return float(len(completion))
