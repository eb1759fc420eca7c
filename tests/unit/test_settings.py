"""What an environment variable that cannot be used is answered with."""

import re

import pytest

from perdure.settings import SettingsError, load_settings


@pytest.mark.parametrize("name", ["PERDURE_FAIL_WORKFLOWS", "PERDURE_ALLOW_INLINE_AGENTS"])
def test_a_switch_that_is_neither_on_nor_off_is_refused_and_says_what_to_choose(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "failed")
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value) == f"{name}='failed': choose 1 or 0"
    for value, means in {"1": True, "on": True, "0": False, "off": False}.items():
        monkeypatch.setenv(name, value)
        assert getattr(load_settings(), name.removeprefix("PERDURE_").lower()) is means


@pytest.mark.parametrize("weights", ["acme", "acme=0", "acme=x", "=5", "acme=5000"])
def test_a_weight_that_temporal_would_refuse_is_refused_here(monkeypatch: pytest.MonkeyPatch, weights: str) -> None:
    monkeypatch.setenv("PERDURE_TENANT_WEIGHTS", weights)
    with pytest.raises(SettingsError, match=r"PERDURE_TENANT_WEIGHTS.*write TENANT=NUMBER, as in acme=5"):
        load_settings()


@pytest.mark.parametrize("limits", ["acme", "acme=0", "acme=1.5", "=5", "*", "acme=-1", "acme=1,beta"])
def test_a_limit_of_a_tenant_that_is_none_is_refused_with_the_form(
    monkeypatch: pytest.MonkeyPatch, limits: str
) -> None:
    monkeypatch.setenv("PERDURE_TENANT_MAX_RUNNING", limits)
    with pytest.raises(SettingsError, match=r"PERDURE_TENANT_MAX_RUNNING.*write TENANT=NUMBER, as in acme=20, or \*=5"):
        load_settings()


def test_tenants_have_one_limit_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_TENANT_MAX_RUNNING", "acme=20, *=5")
    assert load_settings().tenant_max_running == {"acme": 20, "*": 5}
    monkeypatch.setenv("PERDURE_TENANT_MAX_RUNNING", "acme=20,acme=5")
    with pytest.raises(SettingsError, match="acme has two limits"):
        load_settings()


def test_variables_belong_to_the_tenants_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = "acme=PERDURE_CONTEXT_A, beta=PERDURE_CONTEXT_B,acme=PERDURE_CONTEXT_AB,beta=PERDURE_CONTEXT_AB"
    monkeypatch.setenv("PERDURE_TENANT_VARIABLES", pairs)
    assert load_settings().tenant_variables == {
        "PERDURE_CONTEXT_A": {"acme"},
        "PERDURE_CONTEXT_B": {"beta"},
        "PERDURE_CONTEXT_AB": {"acme", "beta"},
    }
    for wrong in ("acme", "acme=", "acme=OPENAI_API_KEY", "acme=PERDURE_CONTEXT_", "PERDURE_CONTEXT_A"):
        monkeypatch.setenv("PERDURE_TENANT_VARIABLES", wrong)
        with pytest.raises(
            SettingsError, match="write TENANT=VARIABLE, as in acme=PERDURE_CONTEXT_ACME, once for each"
        ):
            load_settings()


def test_roles_and_rates_that_are_none_are_refused_with_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_ROLES", "turns,tool")
    with pytest.raises(SettingsError, match="tool is no role; choose among turns, models, tools"):
        load_settings()
    monkeypatch.setenv("PERDURE_ROLES", "")
    monkeypatch.setenv("PERDURE_RATE_LIMITS", "openai=5/s,openai=6/s")
    with pytest.raises(SettingsError, match="openai has two limits"):
        load_settings()


def test_a_deployment_without_a_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_DEPLOYMENT", "agents")
    with pytest.raises(SettingsError, match=r"PERDURE_BUILD_ID='': PERDURE_DEPLOYMENT needs a build id; .* its tag"):
        load_settings()
    monkeypatch.setenv("PERDURE_BUILD_ID", "1.2")
    assert load_settings().versioning == "auto_upgrade"


def test_the_worker_controllers_names_count_where_ours_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMPORAL_DEPLOYMENT_NAME", "theirs")
    monkeypatch.setenv("TEMPORAL_WORKER_BUILD_ID", "abc")
    assert (load_settings().deployment, load_settings().build_id) == ("theirs", "abc")
    monkeypatch.setenv("PERDURE_DEPLOYMENT", "ours")
    monkeypatch.setenv("PERDURE_BUILD_ID", "1")
    assert (load_settings().deployment, load_settings().build_id) == ("ours", "1")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("PERDURE_VERSIONING", "sometimes", "'auto_upgrade', 'rotate' or 'pinned'"),
        ("PERDURE_VERSIONING", "Pinned", "'auto_upgrade', 'rotate' or 'pinned'"),
        ("PERDURE_MIGRATE", "no", "'auto' or 'off'"),
        ("PERDURE_DEPLOYMENT", "ours.eu", "must not have a dot"),
    ],
)
def test_a_setting_of_upgrades_that_is_none_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv("PERDURE_BUILD_ID", "1")
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert str(refused.value).startswith(f"{variable}={value!r}")
    assert said in str(refused.value)


def test_a_build_or_a_policy_without_a_deployment_binds_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller may give every process its build, also those that have no deployment."""
    monkeypatch.setenv("PERDURE_BUILD_ID", "1")
    monkeypatch.setenv("PERDURE_VERSIONING", "pinned")
    assert (load_settings().deployment, load_settings().build_id) == ("", "1")


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (
            "PERDURE_A2A_CAPABILITIES",
            "streaming,pushing",
            "no capability 'pushing'; choose among streaming, push, extended",
        ),
        ("PERDURE_A2A_EXTENSIONS", "https://example.com/v1,policy", "'policy' is no URI"),
        ("PERDURE_DOORS", "chat,mail", "no door 'mail'; the doors are a2a"),
    ],
)
def test_a_name_that_is_none_is_refused_with_the_choice(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=re.escape(why)):
        load_settings()


def test_lists_may_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().a2a_capabilities == ("streaming", "push")
    monkeypatch.setenv("PERDURE_A2A_CAPABILITIES", "")
    assert load_settings().a2a_capabilities == ()
