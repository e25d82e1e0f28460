"""A person's client written against the interface alone: keys of its own scheme, clear payloads.

It uses nothing of the package, as a client of another maker would.
"""

from __future__ import annotations

import base64
import os
import ssl
import uuid
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

Json = dict[str, Any]


def blob(size: int) -> str:
    return base64.b64encode(os.urandom(size)).decode()


class PlainPerson:
    """A signed-in person whose device has keys, and says nothing of schemes."""

    def __init__(self, url: str, ssl_context: ssl.SSLContext) -> None:
        self._url = url
        self._ssl = ssl_context
        self._http = ClientSession()
        self._headers: dict[str, str] = {}
        self._token = ""
        self.device_id = str(uuid.uuid4())
        self.id = ""

    async def call(self, method: str, path: str, body: Json | None = None) -> Any:
        """The `data` of an answer, which must be a success."""
        async with self._http.request(
            method, self._url + path, json=body, headers=self._headers, ssl=self._ssl
        ) as answer:
            told = await answer.json()
            assert answer.status < 300, (method, path, told)
            return told["data"]

    async def send_code(self, address: str) -> None:
        body = {"email": address, "scene": "register", "turnstile_token": "dev-pass"}
        await self.call("POST", "/auth/send-code", body)

    async def register(self, address: str, code: str, name: str) -> None:
        account = {
            "email": address,
            "code": code,
            "account_password": f"account-{uuid.uuid4()}",
            "display_name": name,
            "device_locale": "en",
            "device_id": self.device_id,
            "turnstile_token": "dev-pass",
        }
        signed_in = await self.call("POST", "/auth/register", account)
        self.id, self._token = signed_in["user_id"], signed_in["access_token"]
        self._headers = {"authorization": f"Bearer {self._token}"}
        keys = {
            "backup_a": blob(60),
            "backup_b": blob(60),
            "argon2_salt": blob(32),
            "argon2_params": {"m": 65_536, "t": 3, "p": 1},
            "public_key": blob(32),
            "signing_public_key": blob(32),
            "device_id": self.device_id,
        }
        await self.call("POST", "/keys/backup", keys)

    async def say(self, conversation_id: str, text: str) -> Json:
        body = {"payload": {"type": "text", "text": text}}
        sent: Json = await self.call("POST", f"/conversations/{conversation_id}/messages", body)
        return sent

    async def history(self, conversation_id: str) -> list[Json]:
        """Payloads, oldest first."""
        found = await self.call("GET", f"/conversations/{conversation_id}/messages")
        return [message["payload"] for message in reversed(found)]

    async def connect(self) -> ClientWebSocketResponse:
        """A socket that is ready."""
        address = "ws" + self._url.removeprefix("http") + "/ws"
        socket = await self._http.ws_connect(address, ssl=self._ssl)
        await socket.send_json({"type": "auth", "access_token": self._token})
        for told in ("auth.ok", "ready"):
            assert (await socket.receive_json())["type"] == told
        return socket

    async def rotate(self, conversation_id: str) -> int:
        """Makes an epoch of this client's own scheme, and answers its number."""
        group = await self.call("GET", f"/conversations/{conversation_id}")
        wrapped = []
        for member in group["members"]:
            id = member["principal_id"]
            is_user = member["principal_type"] == "user"
            path = f"/keys/users/{id}/devices" if is_user else f"/agents/{id}/keys"
            shown = await self.call("GET", path)
            for key in shown["devices" if is_user else "keys"]:
                device = {"device_id": key["device_id"]} if is_user else {}
                wrapped.append({"principal_id": id, "wrapped_key": blob(80), **device})
        body = {"base_epoch": group["epoch"], "wrapped_keys": wrapped}
        made = await self.call("POST", f"/keys/groups/{conversation_id}/rotate", body)
        epoch: int = made["epoch"]
        return epoch

    async def close(self) -> None:
        await self._http.close()
