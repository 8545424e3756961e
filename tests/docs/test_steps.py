"""The way from nothing to data stays short, as README prints it."""

from __future__ import annotations

from tests.kit.steps import by_hand, of_readme, shortest


def test_a_local_federation_takes_at_most_twelve_commands_from_nothing_to_data() -> None:
    way = shortest(command for _, command in of_readme())
    assert way[0].startswith("caps federation new")
    assert way[-1].startswith("caps release get")
    assert sum(command.startswith("caps contribute") for command in way) == 2
    assert len(way) <= 12


def test_a_further_study_of_two_owners_takes_all_of_them_together_five_commands() -> None:
    way = shortest(command for _, command in of_readme())[3:]
    assert any(command.startswith("caps contribute") and "--approve" in command for command in way)
    assert len([command for command in way if not command.startswith("caps study approve")]) <= 5


def test_every_party_of_a_federation_by_hand_is_counted() -> None:
    assert set(by_hand()) == {"authority", "S1", "S2", "S3", "coordinator", "north", "south"}
