// One node of a Socket.IO cluster: everybody is in one room, and what anybody sends is told to all of it.
import { createServer } from "node:http";
import { createAdapter } from "@socket.io/redis-adapter";
import Redis from "ioredis";
import { Server } from "socket.io";

const [port, redis] = process.argv.slice(2);
const pub = new Redis(redis);
const sub = pub.duplicate();
const server = createServer();
const io = new Server(server, {
  adapter: createAdapter(pub, sub),
  transports: ["websocket"],
  perMessageDeflate: false,
  serveClient: false,
});
io.on("connection", (socket) => {
  if (socket.handshake.query.silent !== "1") socket.join("all");
  socket.on("send", (text) => io.to("all").emit("m", text));
});
server.listen(Number(port), "127.0.0.1");
