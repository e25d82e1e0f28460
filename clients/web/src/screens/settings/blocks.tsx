/** The people and agents that this person does not want to meet. */
import type { JSX } from "preact";
import type { components } from "@blindpipe/client";
import { Button, Fault } from "../../parts/action.js";
import { t, time } from "../../i18n/index.js";
import { client } from "../../model/phase.js";
import { all, useLoaded } from "./load.js";

type Block = components["schemas"]["Block"];

export function Blocks(): JSX.Element {
  const { value, action, load } = useLoaded(() => all<Block>(client().blocks()));
  const unblock = async (block: Block): Promise<void> => {
    await client().unblock(block.principal_id);
    await load();
  };
  return (
    <>
      <p class="hint">{t("blocks_lead")}</p>
      {value.value?.length === 0 && <p class="hint">{t("no_blocks")}</p>}
      <ul>
        {value.value?.map((block) => (
          <li key={block.principal_id} class="row">
            <bdi>{block.display_name || block.principal_id}</bdi>
            <small>{t("blocked_at", { time: time(block.blocked_at) })}</small>
            <Button action={action} label={`${t("unblock")}: ${block.display_name}`} onPress={() => unblock(block)}>
              {t("unblock")}
            </Button>
          </li>
        ))}
      </ul>
      <Fault of={action} />
    </>
  );
}
