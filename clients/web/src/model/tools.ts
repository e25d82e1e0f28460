/** The tools that agents can ask this browser for. Each call asks the person anew. */
import type { DeviceTool } from "@blindpipe/client";

const LOCATION_TIMEOUT_MS = 20_000;

export const tools: Readonly<Record<string, DeviceTool>> = {
  /** Where the device is. The browser asks as well. */
  get_location: { scope: "location:read", sensitivity: "high", run: locate },
  /** Puts a text where the person can paste it. */
  copy_text: { scope: "clipboard:write", sensitivity: "high", run: copy },
};

async function locate(): Promise<object> {
  const { coords } = await new Promise<GeolocationPosition>((resolve, reject) =>
    navigator.geolocation.getCurrentPosition(
      resolve,
      (fault) => reject(new Error(fault.message)),
      { timeout: LOCATION_TIMEOUT_MS },
    ),
  );
  return { latitude: coords.latitude, longitude: coords.longitude, accuracy_metres: coords.accuracy };
}

async function copy(_: string, { text }: Readonly<Record<string, unknown>>): Promise<object> {
  if (typeof text !== "string") throw new Error("text is missing");
  await navigator.clipboard.writeText(text);
  return { copied: true };
}
