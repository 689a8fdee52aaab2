-- Twin of limit.rs.
--
-- The state of a counter is one string in MessagePack, which is small and quick to read: the
-- format's version and the algorithm's letter (`1t`), then four words: the numbers of the limit it
-- was written under that give the counters their meaning (those that counts_like compares, from
-- `first_kept` on), and the counters; then, of a bucket that has some, the leases (leases.lua), which
-- travel with the limit, as `leases`. Anything else under the key, be it another algorithm's, another
-- version's or of another type, counts as a key never seen.
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
  local _, a, b, c, d, has_leases = cmsgpack.unpack(text)
  local state, is_alike = { b, c, d }, a == numbers[first]
  if limit.counters == 2 then
    state, is_alike = { c, d }, is_alike and b == numbers[first + 1]
  end
  local written_under = limit
  if not is_alike then
    local from = { unpack(numbers) }
    from[first] = a
    if limit.counters == 2 then from[first + 1] = b end
    written_under = limit.new(from)
    written_under.new, written_under.numbers = limit.new, from
  end
  if has_leases then
    local leases = { select(6, cmsgpack.unpack(text)) }
    state = settled(written_under, state, leases, NOW)
    if #leases > 0 then limit.leases, written_under.leases = leases, leases end
  end
  return state, written_under, text
end

-- The state of a key, carried over to this limit, the text it was read from, and whether it was
-- written under another.
local function load_state(limit, key, now)
  if limit.is_log then return limit.standing(key, now) end
  local state, written_under, text = stored_state(limit, key)
  if written_under == limit then return state, text end
  state = carry_over(limit, written_under, state, now)
  -- More may be out than the other quota could count.
  if limit.leases then state = settled(limit, state, limit.leases, now) end
  return state, text, true
end

-- Writes what changed since `text_before` was read: a charge, a time brought back. What is whole again after `reset_after` is vacant then.
local function save_state(limit, key, state, text_before, reset_after)
  if limit.is_log then return limit.apply(state) end
  local header, numbers, first = FORMAT .. limit.letter, limit.numbers, limit.first_kept
  local a, b, c = state[1], state[2], state[3]
  local text
  if limit.leases then
    c = 0
    text = cmsgpack.pack(header, numbers[first], numbers[first + 1], a, b, unpack(limit.leases))
    -- What is out becomes debt when its lease ends, at the latest.
    reset_after = plus(reset_after, LEASE_MICROS)
  elseif limit.counters == 2 then
    c = 0
    text = cmsgpack.pack(header, numbers[first], numbers[first + 1], a, b)
  else
    text = cmsgpack.pack(header, numbers[first], a, b, c)
  end
  if text == text_before then return end
  if a == 0 and b == 0 and c == 0 and not limit.leases then
    if text_before then redis.call('UNLINK', key) end
  elseif IS_VIRTUAL then
    redis.call('SET', key, text)
  else
    redis.call('SET', key, text, 'PX', ttl_millis(reset_after))
  end
end
