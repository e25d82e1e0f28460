import { render } from "preact";
import { App } from "./app.js";
import { isWidget } from "./model/place.js";
import { start } from "./model/session.js";
import { keepShell } from "./model/shell.js";
import "./style.css";

render(<App />, document.getElementById("app")!);
void start();
// The shell is that of the app, and a widget begins with its page.
if (!isWidget) void keepShell();
