import copy
import io
from pathlib import Path

import pytest
import torch

import monarch_recipes
from monarch.config_file import ConfigError, resolve_config, to_toml
from monarch.config_file.toml_text import loads
from monarch.runs import LineDisplay
from monarch_recipes.ddp import DDPConfig, build_model, check, compute_loss, plan
from monarch_recipes.digits import load_digit_samples
from monarch_recipes.memory import memory_of_step
from monarch_recipes.samples import TooFewSamples

SHIPPED = Path(monarch_recipes.__file__).parent / "configs" / "ddp.toml"


def test_the_shipped_config_holds_every_key_at_its_default() -> None:
    text = SHIPPED.read_text()
    assert resolve_config(DDPConfig, text).config == DDPConfig()
    assert list(loads(text)) == list(loads(to_toml(DDPConfig())))


@pytest.mark.parametrize(
    "override",
    [
        "num_epochs=0",
        "held_out_fraction=1",
        "dropout=1",
        "clip_norm=-1",
        "evaluate_every=-1",
        "num_ranks=0",
        "learning_rate=nan",
        "weight_decay=-0.1",
        "master_port=99999",
        "collective_timeout_seconds=0",
    ],
)
def test_values_that_make_no_sense_are_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=f"^override '{override}': '{override.split('=')[0]}'"):
        resolve_config(DDPConfig, "", overrides=[override])


def test_digits_are_split_the_same_way_for_the_same_seed() -> None:
    digits, again, other = load_digit_samples(1), load_digit_samples(1), load_digit_samples(2)
    assert (len(digits.train), len(digits.held_out)) == (1438, 359)
    assert digits.train.images.shape == (1438, 1, 8, 8)
    assert float(digits.train.images.min()) == 0.0
    assert float(digits.train.images.max()) == 1.0
    assert torch.equal(digits.train.labels, again.train.labels)
    assert not torch.equal(digits.train.labels, other.train.labels)


def test_a_config_that_does_not_fit_the_procs_is_refused_with_its_origin() -> None:
    for override, procs, expected in (
        ("num_ranks=8", (2, 2), "asks for 8 ranks, and there are 4 procs"),
        ("num_ranks=3", (2, 2), "which 2 hosts cannot share evenly"),
        ("global_batch_size=100", (1, 3), "cannot be shared evenly by 3 ranks"),
    ):
        loaded = resolve_config(DDPConfig, "", overrides=[override])
        error = pytest.raises(ConfigError, match=f"^override '{override}': .*{expected}")
        with error, loaded.locating_errors():
            check(loaded.config, *procs)
    check(DDPConfig(), 2, 2)


def test_a_plan_that_could_not_be_run_is_refused_as_the_run_would_be() -> None:
    with pytest.raises(TooFewSamples, match=r"2 ranks with 1000 samples each want more than the 1"):
        plan(DDPConfig(global_batch_size=2000), 1, 2)


def test_the_plan_counts_what_the_model_really_has() -> None:
    planned = plan(DDPConfig(num_ranks=2), 1, 4)
    num_parameters = sum(p.numel() for p in build_model(DDPConfig()).parameters())
    assert planned["parameters"] == f"{num_parameters:,}"
    assert planned["a step"] == "2 x 32 samples on each rank"
    assert planned["steps"] == "264 in 24 epochs of 1438 samples"
    assert f"weights {num_parameters * 4 / 2**20:.1f}" in planned["memory of a rank"]


def test_the_memory_of_a_step_grows_with_what_the_backward_pass_needs() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 100), torch.nn.ReLU(), torch.nn.Linear(100, 2))
    sample = torch.zeros(8), torch.tensor(0)

    def of(size: int) -> int:
        return memory_of_step(lambda: copy.deepcopy(model), compute_loss, sample, size).activations

    # The input, the hidden layer behind its ReLU, and the logits: 4 bytes each.
    assert of(8) - of(4) >= 4 * 4 * (8 + 100)
    assert of(8) - of(4) < 2 * 4 * 4 * (8 + 100)


def test_the_model_gives_a_finite_loss() -> None:
    logits = build_model(DDPConfig())(torch.rand(4, 1, 8, 8))
    assert logits.shape == (4, 10)
    assert compute_loss(logits, torch.zeros(4, dtype=torch.int64)).isfinite()


def test_line_display_writes_every_nth_step_and_the_last() -> None:
    stream = io.StringIO()
    display = LineDisplay(stream, log_every=2)
    for step in range(1, 4):
        display.metrics(step, 3, {"loss": 1 / step})
    display.message("done")
    assert stream.getvalue() == "step 2/3  loss 0.5\nstep 3/3  loss 0.3333\ndone\n"
