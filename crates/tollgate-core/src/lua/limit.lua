-- Twin of limit.rs.
--
-- The state of a counter is one string in MessagePack, which is small and quick to read: the
-- format's version and the algorithm's letter (`1t`), then four words: the numbers of the limit it
-- was written under that give the counters their meaning (those that counts_like compares, from
-- `first_kept` on), and the counters. Anything else under the key, be it another algorithm's,
-- another version's or of another type, counts as a key never seen.
local FORMAT = '1'
local ALGORITHMS =
  { sliding_window, token_bucket, leaky_bucket, fixed_window, sliding_log, concurrency }

-- The limit whose algorithm and five numbers are in ARGV.
local function limit_at(algorithm_at, numbers_at)
  local numbers = {
    tonumber(ARGV[numbers_at]), tonumber(ARGV[numbers_at + 1]), tonumber(ARGV[numbers_at + 2]),
    tonumber(ARGV[numbers_at + 3]), tonumber(ARGV[numbers_at + 4]),
  }
  local new = ALGORITHMS[tonumber(ARGV[algorithm_at])]
  local limit = new(numbers)
  limit.new, limit.numbers = new, numbers
  return limit
end

local function carry_over(limit, old, state, now)
  local used, moment = old.used(state, now)
  if used == 0 then return { 0, 0, 0 } end
  return limit.anchored(limit.with_used(used, moment), now)
end

-- The state of a counter as it was written, the limit it was written under, and its text.
local function stored_state(limit, key)
  local text = read('GET', key)
  if not text or string.sub(text, 2, 3) ~= FORMAT .. limit.letter then return { 0, 0, 0 }, limit end
  local numbers, first = limit.numbers, limit.first_kept
  local _, a, b, c, d = cmsgpack.unpack(text)
  local state, is_alike = { b, c, d }, a == numbers[first]
  if limit.counters == 2 then
    state, is_alike = { c, d }, is_alike and b == numbers[first + 1]
  end
  if is_alike then return state, limit, text end
  local from = { unpack(numbers) }
  from[first] = a
  if limit.counters == 2 then from[first + 1] = b end
  local old = limit.new(from)
  old.new, old.numbers = limit.new, from
  return state, old, text
end

-- The state of a key, carried over to this limit, the text it was read from, and whether it was
-- written under another.
local function load_state(limit, key, now)
  if limit.is_log then return limit.standing(key, now) end
  local state, written_under, text = stored_state(limit, key)
  if written_under == limit then return state, text end
  return carry_over(limit, written_under, state, now), text, true
end

-- Writes what changed since `text_before` was read: a charge, a time brought back. What is whole again after `reset_after` is vacant then.
local function save_state(limit, key, state, text_before, reset_after)
  if limit.is_log then return limit.apply(state) end
  local header, numbers, first = FORMAT .. limit.letter, limit.numbers, limit.first_kept
  local a, b, c = state[1], state[2], state[3]
  local text
  if limit.counters == 2 then
    c = 0
    text = cmsgpack.pack(header, numbers[first], numbers[first + 1], a, b)
  else
    text = cmsgpack.pack(header, numbers[first], a, b, c)
  end
  if text == text_before then return end
  if a == 0 and b == 0 and c == 0 then
    if text_before then redis.call('UNLINK', key) end
  elseif IS_VIRTUAL then
    redis.call('SET', key, text)
  else
    redis.call('SET', key, text, 'PX', ttl_millis(reset_after))
  end
end
