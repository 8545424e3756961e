"""The way from nothing to data stays short, as README prints it."""

from __future__ import annotations

from tests.kit.steps import by_hand, files_by_hand, moved, of_readme, own, shortest


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


def test_nobody_handles_more_files_than_their_keys_their_tokens_and_their_own_table_or_study() -> None:
    owner = [command for person, command in of_readme() if person == "Data owner"]
    assert (own(owner) >= {"trial/sample/north.csv", "trial/sample/south.csv"}, moved(owner)) == (True, 0)
    for party, (mine, handled) in files_by_hand().items():
        assert mine <= 1, party
        assert 1 <= handled <= 5, party


def test_what_is_moved_is_counted() -> None:
    assert moved(["cp a b", "caps x > f.token", "python -m s > log 2>&1 &", "caps y -o z"]) == 2
    assert own(["caps table put $STUDY patients.csv", "caps study check trial/sample/study.yaml --json"]) == {
        "patients.csv",
        "trial/sample/study.yaml",
    }
