"""Two things that a user could not see: where a resumed run looks for its text, a prompt's cut."""

from __future__ import annotations

from tests.runs import conftest
from tests.runs.conftest import TEXT, Lab

lab = conftest.lab


def test_a_resumed_run_whose_text_has_moved_says_where_it_looked(lab: Lab) -> None:
    lab.fit(trainer__max_steps=2)
    (lab.folder / "text.txt").rename(lab.folder / "moved.txt")
    resume = ("fit", f"--ckpt_path={lab.run()}", "--trainer.max_steps=4")
    line = lab.refused(*resume)
    assert f"looked for {lab.folder / 'text.txt'};" in line
    assert "name its new place with --data.corpus NEWPLACE" in line
    assert lab(*resume, "--data.corpus=moved.txt").code == 0


def test_a_moved_text_for_validation_is_named_by_its_own_setting(lab: Lab) -> None:
    (lab.folder / "held.txt").write_text(TEXT[:400])
    lab.fit(trainer__max_steps=2, data__val_corpus="held.txt", data__val_fraction=None)
    (lab.folder / "held.txt").rename(lab.folder / "moved.txt")
    resume = ("fit", f"--ckpt_path={lab.run()}", "--trainer.max_steps=4")
    assert "name its new place with --data.val_corpus NEWPLACE" in lab.refused(*resume)
    other = lab.refused(*resume, "--data.val_corpus=text.txt")
    assert "text.txt" in other
    assert lab(*resume, "--data.val_corpus=moved.txt").code == 0


def test_a_prompt_longer_than_the_context_is_cut_with_a_word(lab: Lab) -> None:
    lab.fit(trainer__max_steps=2)
    call = ("generate", "--max_new_tokens=1", "--accelerator=cpu", "--prompt")
    told = "--prompt has 17 tokens and the model's context 16: it sees the last 16 only"
    assert told in lab(*call, TEXT[:17]).err
    assert "--prompt" not in lab(*call, TEXT[:16]).err
