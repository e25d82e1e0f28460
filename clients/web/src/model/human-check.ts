/**
 * The human check. The development cluster has a stand-in that takes this word, and no other service takes it: the frame
 * with the check of a real service is not built yet.
 */
const DEVELOPMENT_TOKEN = "dev-pass";

export function humanCheck(): Promise<string> {
  return Promise.resolve(DEVELOPMENT_TOKEN);
}
