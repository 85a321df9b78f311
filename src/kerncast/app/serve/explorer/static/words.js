// Numbers and values as a person reads them.

const digits = (value) => {
  const size = Math.abs(value);
  if (size >= 1000 || size === 0) return value.toLocaleString("en-US", { maximumFractionDigits: 0 });
  return value.toLocaleString("en-US", { maximumFractionDigits: size >= 99.95 ? 0 : size >= 9.995 ? 1 : size >= 0.9995 ? 2 : 3 });
};

/** 12.3 µs */
export function duration(nanoseconds) {
  if (nanoseconds === null || nanoseconds === undefined || !Number.isFinite(nanoseconds)) return "–";
  for (const [factor, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (nanoseconds >= factor * 0.9995) return `${digits(nanoseconds / factor)} ${unit}`;
  }
  return `${digits(nanoseconds)} ns`;
}

/** 3 h 12 min, 4 min 10 s, 12 s */
export function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.round(seconds);
  if (whole >= 3600) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  if (whole >= 60) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return seconds < 10 ? `${digits(seconds)} s` : `${whole} s`;
}

export const percent = (share, places = 1) =>
  share === null || share === undefined || !Number.isFinite(share) ? "–"
    : `${(100 * share).toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places })} %`;

export const count = (number) => (number === null || number === undefined ? "–" : number.toLocaleString("en-US"));

export const short = (number) => (number === null || number === undefined ? "–" : digits(number));

/** 1.2k, 64k, 8M: for the ticks of an axis. */
export function brief(value) {
  if (typeof value !== "number") return String(value);
  for (const [factor, unit] of [[1 << 30, "Gi"], [1 << 20, "Mi"], [1 << 10, "Ki"]]) {
    if (value >= factor && value % factor === 0) return value < 1 << 14 ? String(value) : `${value / factor}${unit}`;
  }
  return value >= 1e5 ? `${digits(value / 1e3)}k` : String(value);
}

/** What follows a count of problems of several devices, where each counts once for each device. */
export const distinct = (pooled) => (pooled ? `${count(pooled.problems)} distinct on ${pooled.devices} devices` : "");

/** M=128 N=256 */
export const assignments = (values) => Object.entries(values || {}).map(([name, value]) => `${name}=${value}`).join(" ");

/** What a config is called: its label in the data, its parameters, or that there is only one. */
export const named = (config, label) => label || assignments(config) || "the only kernel";

/** What tells some configs apart, and what all of them have in common. */
export function apart(configs) {
  const names = [...new Set(configs.flatMap((config) => Object.keys(config || {})))];
  const common = configs.length < 2 ? [] : names.filter((name) => configs.every((config) => config && config[name] === configs[0][name]));
  const without = (config) => Object.fromEntries(Object.entries(config || {}).filter(([name]) => !common.includes(name)));
  return { name: (config, label) => label || assignments(without(config)) || named(config), common: assignments(Object.fromEntries(common.map((name) => [name, configs[0][name]]))) };
}

/** 156 TFLOPS, 63 GFLOPS */
export const flops = (tera) => (tera >= 1 ? `${digits(tera)} TFLOPS` : `${digits(tera * 1e3)} GFLOPS`);

export const times = (factor) => `× ${factor >= 10 ? digits(factor) : factor.toFixed(factor < 0.1 ? 3 : 2)}`;
