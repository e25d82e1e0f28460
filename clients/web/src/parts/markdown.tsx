/**
 * An agent's markdown as elements. Only the lexer of the library is used: no text becomes HTML, a picture becomes its
 * description, and a link shows the host that it leads to.
 */
import type { ComponentChildren, JSX } from "preact";
import { lexer, type Token, type Tokens } from "marked";

export function Markdown({ text }: { readonly text: string }): JSX.Element {
  return <div class="markdown">{blocks(lexer(text, { gfm: true }))}</div>;
}

function blocks(tokens: readonly Token[]): ComponentChildren {
  return tokens.map((token, at) => block(token, at));
}

function block(token: Token, key: number): ComponentChildren {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "hr":
      return <hr key={key} />;
    case "heading":
      // A message is below the headings of the page.
      return (
        <p key={key} class="heading">
          {inline((token as Tokens.Heading).tokens)}
        </p>
      );
    case "code":
      return (
        <pre key={key} tabIndex={0}>
          <code>{(token as Tokens.Code).text}</code>
        </pre>
      );
    case "blockquote":
      return <blockquote key={key}>{blocks((token as Tokens.Blockquote).tokens)}</blockquote>;
    case "list":
      return list(token as Tokens.List, key);
    case "table":
      return table(token as Tokens.Table, key);
    case "paragraph":
      return <p key={key}>{inline((token as Tokens.Paragraph).tokens)}</p>;
    case "text":
      return <span key={key}>{inline((token as Tokens.Text).tokens ?? [token])}</span>;
    default:
      return <p key={key}>{token.raw}</p>;
  }
}

function list({ ordered, start, items }: Tokens.List, key: number): JSX.Element {
  const rows = items.map((item, at) => <li key={at}>{blocks(item.tokens)}</li>);
  return ordered ? (
    <ol key={key} start={Number(start) || 1}>
      {rows}
    </ol>
  ) : (
    <ul key={key}>{rows}</ul>
  );
}

function table({ header, rows }: Tokens.Table, key: number): JSX.Element {
  return (
    <div key={key} class="table" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {header.map((cell, at) => (
              <th key={at} scope="col">
                {inline(cell.tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((cells, row) => (
            <tr key={row}>
              {cells.map((cell, at) => (
                <td key={at}>{inline(cell.tokens)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inline(tokens: readonly Token[]): ComponentChildren {
  return tokens.map((token, key) => {
    switch (token.type) {
      case "strong":
        return <strong key={key}>{inline((token as Tokens.Strong).tokens)}</strong>;
      case "em":
        return <em key={key}>{inline((token as Tokens.Em).tokens)}</em>;
      case "del":
        return <del key={key}>{inline((token as Tokens.Del).tokens)}</del>;
      case "codespan":
        return <code key={key}>{(token as Tokens.Codespan).text}</code>;
      case "br":
        return <br key={key} />;
      case "link":
        return link(token as Tokens.Link, key);
      case "image":
        // A picture's address would tell whoever it names that, and what, is read here.
        return <span key={key}>{(token as Tokens.Image).text}</span>;
      case "text": {
        const { tokens: parts, text } = token as Tokens.Text;
        return parts ? <span key={key}>{inline(parts)}</span> : text;
      }
      case "escape":
        return (token as Tokens.Escape).text;
      default:
        return token.raw;
    }
  });
}

function link({ href, tokens }: Tokens.Link, key: number): ComponentChildren {
  const address = webAddress(href);
  if (!address) return <span key={key}>{inline(tokens)}</span>;
  return (
    <span key={key}>
      <a href={address.href} target="_blank" rel="noopener noreferrer nofollow">
        {inline(tokens)}
      </a>{" "}
      <small class="host">({address.host})</small>
    </span>
  );
}

function webAddress(text: string): URL | null {
  try {
    const address = new URL(text);
    return address.protocol === "https:" || address.protocol === "http:" ? address : null;
  } catch {
    return null;
  }
}
