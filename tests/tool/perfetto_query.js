// Loads a trace into Perfetto's trace processor and runs queries. Prints a JSON array with one array of rows for each
// query; a row is an object.
//
// usage: node perfetto_query.js WEB_FOLDER TRACE QUERY...
// WEB_FOLDER has trace_processor.wasm and engine_bundle.js, which is written for a worker of a browser. So this file
// provides the objects and functions of a worker.
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const [folder, trace, ...queries] = process.argv.slice(2);

// Prints only the message. By default Node also prints the line of the error, which would be the whole engine.
process.on('uncaughtException', (error) => {
  process.stderr.write(`perfetto_query: ${String(error && error.message).slice(0, 2000)}\n`);
  process.exit(1);
});

// --- protobuf, as much of it as is needed ---

function varint(value) {
  const bytes = [];
  let rest = BigInt(value);
  do {
    bytes.push(Number(rest & 127n) | (rest > 127n ? 128 : 0));
    rest >>= 7n;
  } while (rest > 0n);
  return Buffer.from(bytes);
}
const number = (field, value) => Buffer.concat([varint(field << 3), varint(value)]);
const message = (field, bytes) => Buffer.concat([varint((field << 3) | 2), varint(bytes.length), bytes]);

function* fields(bytes) {
  let at = 0;
  const read = () => {
    let value = 0n;
    for (let shift = 0n;; shift += 7n) {
      if (at >= bytes.length) throw new Error('a message is cut off');
      const byte = bytes[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const key = Number(read());
    if ((key & 7) === 0) {
      yield [key >> 3, read()];
    } else if ((key & 7) === 1) {
      yield [key >> 3, bytes.subarray(at, at += 8)];
    } else {
      const length = Number(read());
      yield [key >> 3, bytes.subarray(at, at += length)];
    }
  }
}
function* varints(bytes) {
  for (let at = 0; at < bytes.length;) {
    let value = 0n;
    for (let shift = 0n;; shift += 7n) {
      const byte = bytes[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) break;
    }
    yield value;
  }
}

// --- the answers: QueryResult ---

const RPC = 1, REQUEST = 2, APPEND = 101, QUERY = 103, QUERY_RESULT = 203;
const REQUEST_APPEND = 1, REQUEST_FINALIZE = 2, REQUEST_QUERY = 3;
const CELL_NULL = 1, CELL_INTEGER = 2, CELL_FLOAT = 3, CELL_STRING = 4;

let sequence = 0;
const request = (kind, rest) =>
    message(RPC, Buffer.concat([number(1, sequence++), number(REQUEST, kind), rest]));

function readBatch(bytes, result) {
  const cells = [], integers = [], floats = [];
  let texts = [], nextInteger = 0, nextFloat = 0, nextText = 0;
  for (const [field, value] of fields(bytes)) {
    if (field === 1) cells.push(...Array.from(varints(value), Number));
    if (field === 2) integers.push(...Array.from(varints(value), (v) => Number(BigInt.asIntN(64, v))));
    if (field === 3) for (let i = 0; i < value.length; i += 8) floats.push(Buffer.from(value).readDoubleLE(i));
    if (field === 5) texts = Buffer.from(value).toString().split('\0');
    if (field === 6) result.done = value === 1n;
  }
  for (const cell of cells) {
    const value = cell === CELL_INTEGER ? integers[nextInteger++] : cell === CELL_FLOAT ? floats[nextFloat++] :
        cell === CELL_STRING ? texts[nextText++] : null;
    if (cell !== CELL_NULL && value === null) throw new Error(`a cell of type ${cell}`);
    result.cells.push(value);
  }
}

// Returns the length of the first message of the stream and of its header, or Infinity if the header is not complete.
function firstLength(stream) {
  let length = 0;
  for (let at = 1, shift = 0; at < stream.length; ++at, shift += 7) {
    length += (stream[at] & 127) * 2 ** shift;
    if (stream[at] < 128) return at + 1 + length;
  }
  return Infinity;
}

const results = [];
let stream = Buffer.alloc(0);
// The engine sends a long message in several parts.
function onAnswer(bytes) {
  stream = Buffer.concat([stream, bytes]);
  for (let length; (length = firstLength(stream)) <= stream.length;) {
    onMessages(stream.subarray(0, length));
    stream = stream.subarray(length);
  }
}
function onMessages(bytes) {
  for (const [, rpc] of fields(bytes)) {
    for (const [field, value] of fields(rpc)) {
      if (field === 5) throw new Error('trace processor: ' + Buffer.from(value).toString());
      if (field !== QUERY_RESULT) continue;
      const result = results.find((r) => !r.done);
      for (const [part, content] of fields(value)) {
        if (part === 1) result.columns.push(Buffer.from(content).toString());
        if (part === 2) throw new Error('query: ' + Buffer.from(content).toString());
        if (part === 3) readBatch(content, result);
      }
    }
  }
}
function rowsOf(result) {
  const rows = [];
  for (let i = 0; i < result.cells.length; i += result.columns.length) {
    rows.push(Object.fromEntries(result.columns.map((name, c) => [name, result.cells[i + c]])));
  }
  return rows;
}

// --- the worker ---

class Xhr {
  open(method, url) {
    this.url = url;
  }
  send() {
    const bytes = fs.readFileSync(path.join(folder, path.basename(this.url)));
    this.status = 200;
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
}

function run() {
  const port = {
    postMessage: (data) => onAnswer(Buffer.from(data)),
  };
  const worker = {
    console: new console.Console(process.stderr), TextDecoder, TextEncoder, URL, performance, setTimeout, clearTimeout, XMLHttpRequest: Xhr, crypto: globalThis.crypto,
    WorkerGlobalScope: function() {},
    location: {href: 'http://localhost/engine_bundle.js', pathname: '/engine_bundle.js'},
    postMessage: () => {},
    addEventListener: () => {},
    importScripts: () => {},
  };
  worker.self = worker;
  vm.createContext(worker);
  vm.runInContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), worker);
  // The engine checks that its input has its own context's type.
  const Bytes = vm.runInContext('Uint8Array', worker);
  worker.onmessage({data: port});
  // The engine finishes its start in a promise, which runs before a timer.
  setTimeout(() => {
    const send = (bytes) => port.onmessage({data: new Bytes(bytes)});
    const bytes = fs.readFileSync(trace);
    const chunk = 16 << 20;
    for (let at = 0; at < bytes.length; at += chunk) {
      send(request(REQUEST_APPEND, message(APPEND, bytes.subarray(at, at + chunk))));
    }
    send(request(REQUEST_FINALIZE, Buffer.alloc(0)));
    for (const query of queries) {
      results.push({columns: [], cells: [], done: false});
      send(request(REQUEST_QUERY, message(QUERY, message(1, Buffer.from(query)))));
    }
    if (results.some((result) => !result.done)) throw new Error('no answer to a query');
    process.stdout.write(JSON.stringify(results.map(rowsOf)) + '\n');
  }, 0);
}

run();
