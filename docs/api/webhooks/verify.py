"""Verifies a delivery with Python's standard library."""

import hashlib
import hmac
import time

TOLERANCE_SECONDS = 300


def verify(secret, headers, body, now=None):
    """Returns the delivery id, or None if the delivery is not genuine.

    secret: the webhook's secret as text, with its prefix.
    headers: a mapping with lower-case names.
    body: the request's bytes as received, before any parsing.
    """
    timestamp = headers.get("x-service-timestamp", "")
    delivery_id = headers.get("x-service-delivery-id", "")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        return None
    if abs((time.time() if now is None else now) - int(timestamp)) > TOLERANCE_SECONDS:
        return None
    signed = f"{timestamp}.{delivery_id}.".encode() + body
    expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest().encode()
    genuine = False
    # After a rotation the second header carries the signature with the secret before it.
    for name in ("x-service-signature", "x-service-signature-previous"):
        genuine |= hmac.compare_digest(headers.get(name, "").encode(), expected)
    return delivery_id if genuine else None
