import { render } from "preact";
import { App, start } from "./app.js";
import { language } from "./i18n/first.js";
import { isWidget } from "./model/place.js";
import { keepShell } from "./model/shell.js";
import "./style.css";

document.documentElement.lang = language;
void start();
render(<App />, document.getElementById("app")!);
// The shell is that of the app, and a widget begins with its page.
if (!isWidget) void keepShell();
