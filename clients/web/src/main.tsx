import { render } from "preact";
import { App, start } from "./app.js";
import { isWidget } from "./model/place.js";
import { keepShell } from "./model/shell.js";
import "./style.css";

render(<App />, document.getElementById("app")!);
void start();
// The shell is that of the app, and a widget begins with its page.
if (!isWidget) void keepShell();
