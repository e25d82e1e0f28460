import { render } from "preact";
import { App } from "./app.js";
import { start } from "./model/session.js";
import { keepShell } from "./model/shell.js";
import "./style.css";

render(<App />, document.getElementById("app")!);
void start();
void keepShell();
