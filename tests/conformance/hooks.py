"""Hooks of schemathesis: generated calls meet what exists, as a caller that a world names.

Random ids would only ever be answered with 404. Most calls therefore get the ids of the world."""

import json
import os
import random

import schemathesis

with open(os.environ["WORLD"], encoding="utf-8") as file:
    WORLD = json.load(file)
KNOWN_SHARE = 0.8
CHANCE = random.Random()
# Long polls would wait for 25 seconds each.
MAX_WAIT_SECONDS = 0
# Operations that end what they name get ids of their own, so that the others' remain.
DESTRUCTIVE = {
    # A sign-in ends the session that its device had.
    ("POST", "/auth/login"),
    ("POST", "/auth/login-code"),
    ("POST", "/auth/passkey/complete"),
    ("POST", "/auth/register"),
    ("DELETE", "/agents/{agent_id}"),
    ("DELETE", "/agents/{agent_id}/token"),
    ("POST", "/agents/{agent_id}/token/regenerate"),
    ("DELETE", "/users/me/devices/{device_id}"),
    ("DELETE", "/relations/{relation_id}"),
    ("DELETE", "/groups/{conversation_id}/members/{principal_id}"),
    ("PUT", "/users/me/blocks/{principal_id}"),
}


# Values that the other calls need. Schemathesis repeats ids that it has seen in answers, so a destructive call may name it.
NEEDED = {value for values in WORLD["ids"].values() for value in values}


def known(name, is_destructive):
    values = WORLD["spare" if is_destructive else "ids"].get(name)
    return CHANCE.choice(values) if values and CHANCE.random() < KNOWN_SHARE else None


def unlike(value):
    """An id of the same form that nothing has."""
    return value[:-4] + "".join(CHANCE.choice("0123456789") for _ in range(4))


def harmless(generated, is_destructive):
    return unlike(generated) if is_destructive and str(generated) in NEEDED else generated


def with_known_ids(value, is_destructive):
    if isinstance(value, dict):
        return {
            key: (isinstance(inner, str) and known(key, is_destructive)) or with_known_ids(inner, is_destructive)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [with_known_ids(inner, is_destructive) for inner in value]
    return harmless(value, is_destructive) if isinstance(value, str) else value


@schemathesis.hook
def before_call(context, case, kwargs):
    operation = (case.operation.method.upper(), case.operation.path)
    is_destructive = operation in DESTRUCTIVE
    for name, generated in (case.path_parameters or {}).items():
        case.path_parameters[name] = known(name, is_destructive) or harmless(generated, is_destructive)
    if case.query and "wait" in case.query:
        case.query["wait"] = MAX_WAIT_SECONDS
    if isinstance(case.body, (dict, list)):
        case.body = with_known_ids(case.body, is_destructive)
    if case.headers is not None and "authorization" not in {name.lower() for name in case.headers}:
        token = "spare_token" if operation == ("DELETE", "/users/me") else "token"
        case.headers["Authorization"] = f"Bearer {WORLD[token]}"
