-- Shared by the twins of the algorithms.
--
-- Numbers here are doubles. Every result is an integer below 2^53, so nothing is ever rounded. Some
-- products and sums on the way may be larger; those are only compared with, or cut off at,
-- something below 2^53, and there rounding does no harm: it keeps the order of numbers, and 2^53 is
-- a double itself, so that what is 2^53 or more stays so.
--
-- Everything here runs anew with every call, and what costs most is making functions and tables.
-- Hence several results in place of a table, and only those algorithms that are asked for; what is
-- rarely asked of one it makes when it is.
local EXACT_MAX = 2 ^ 53 - 1
local COUNT_MAX = 2 ^ 32 - 1

local max, min, fmod = math.max, math.min, math.fmod

-- An answer to one charge is a list, in the order of the reply: outcome, limit, remaining,
-- reset_after, next_after, retry_after, delay, then the receipt. These are the places of those
-- fields that are filled in or read by name.
local OUTCOME, REMAINING, RESET_AFTER, NEXT_AFTER, RETRY_AFTER, DELAY = 1, 3, 4, 5, 6, 7
local CHARGED, CHARGED_AT, DEBT_BEFORE = 8, 9, 10
local ALLOWED, DENIED, TOO_COSTLY = 0, 1, 2
local NONE = -1 -- in place of a wait

-- fmod is exact, and so is dividing what has no remainder. Lua's own % is not: it multiplies a
-- quotient that was rounded.
local function div_floor(a, b)
  return (a - fmod(a, b)) / b
end

local function div_ceil(a, b)
  local rest = fmod(a, b)
  if rest == 0 then return a / b end
  return (a - rest) / b + 1
end

-- Twin of Timestamp::plus and Micros::plus.
local function plus(moment, wait)
  return min(moment + wait, EXACT_MAX)
end

-- Twin of Timestamp::until_passed. The parentheses keep it exact: the sum of a moment and a wait
-- may not be.
local function until_passed(now, wait, start)
  return max(wait - (now - start), 0)
end

-- Tests give the time. Then no key may expire, since this server's clock has nothing to do with it.
local NOW = tonumber(ARGV[1])
local IS_VIRTUAL = NOW ~= nil
if not IS_VIRTUAL then
  local time = redis.call('TIME')
  NOW = time[1] * 1000000 + time[2]
end

-- How long a key lives whose limit is whole again after `reset_after`, and so vacant. Rounded up,
-- and a millisecond on top, since keys expire by a clock that the server may have read a little
-- before TIME: a state must never be gone before it is vacant. In digits: some
-- servers would be given a number with an exponent, and `..` keeps 14 digits only.
local function ttl_millis(reset_after)
  return string.format('%.0f', div_ceil(reset_after, 1000) + 1)
end

-- Whether a key is of another type than the command that replied, and so another algorithm's. Any
-- other failure is the caller's to hear of.
local function is_of_another(reply)
  if type(reply) ~= 'table' or not reply.err then return false end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply) end
  return true
end

-- What a command of a key's own type replied. Another algorithm's goes, and this one starts afresh.
local function replied(reply, key)
  if not is_of_another(reply) then return reply end
  redis.call('UNLINK', key)
  return false
end

-- Which algorithms are asked for. Arguments after the time are MessagePack, several values in one
-- string, which is a fraction of the work of an argument for each; they begin with the number of an
-- algorithm: 1 sliding_window, 2 token_bucket, 3 leaky_bucket, 4 fixed_window, 5 sliding_log,
-- 6 concurrency.
local ASKED = {}
for i = 2, #ARGV do ASKED[string.byte(ARGV[i])] = true end
-- Twin of token_bucket.rs.
-- limit: ticks_per_unit, ticks_per_micro, burst, period. state: debt, updated_at.
local token_bucket
if ASKED[2] or ASKED[3] then
  local function anchored(limit, state, now)
    local latest = plus(now, limit[4])
    if state[2] <= latest then return state end
    return { state[1], latest }
  end

  -- The debt now, the moment it stands at, and how far the clock is behind that.
  local function standing(limit, state, now)
    local debt, updated_at = state[1], state[2]
    if now < updated_at then return debt, updated_at, updated_at - now end
    -- A product of 2^53 or more is more than any debt.
    return max(debt - (now - updated_at) * limit[2], 0), now, 0
  end

  local function repaid_in(limit, ticks, behind)
    if ticks == 0 then return 0 end
    -- Most quotas have one tick a microsecond.
    if limit[2] == 1 then return plus(ticks, behind) end
    return plus(div_ceil(ticks, limit[2]), behind)
  end

  local function decision(limit, outcome, debt, behind, retry_after)
    local ticks_per_unit, burst = limit[1], limit[3]
    local capacity = burst * ticks_per_unit -- at most CAPACITY_TICKS_MAX
    local remaining = div_floor(max(capacity - debt, 0), ticks_per_unit)
    local next = 0
    if remaining ~= burst then
      -- In this order, since debt and capacity together may be more than 2^53.
      next = debt - (capacity - (remaining + 1) * ticks_per_unit)
    end
    local reset_after, next_after = repaid_in(limit, debt, behind), repaid_in(limit, next, behind)
    return { outcome, burst, remaining, reset_after, next_after, retry_after, 0, 0, 0, 0 }
  end

  local function charged(limit, state, debt, at, behind, cost, price)
    local answer = decision(limit, ALLOWED, debt + price, behind, NONE)
    answer[CHARGED], answer[CHARGED_AT], answer[DEBT_BEFORE] = cost, at, debt
    if price == 0 then return answer, state end
    return answer, { debt + price, at }
  end

  local function decide(limit, state, now, cost)
    local debt, at, behind = standing(limit, state, now)
    if cost > limit[3] then return decision(limit, TOO_COSTLY, debt, behind, NONE), state end
    local price = cost * limit[1]
    local room = limit[3] * limit[1] - price
    if debt > room then
      local retry_after = repaid_in(limit, debt - room, behind)
      return decision(limit, DENIED, debt, behind, retry_after), state
    end
    return charged(limit, state, debt, at, behind, cost, price)
  end

  local function more(self)
    -- A product of 2^53 or more is cut off.
    local function price_of(limit, cost)
      return min(cost * limit[1], EXACT_MAX)
    end

    function self.force(limit, state, now, cost)
      local debt, at, behind = standing(limit, state, now)
      local price = min(price_of(limit, cost), EXACT_MAX - debt)
      return charged(limit, state, debt, at, behind, cost, price)
    end

    function self.punish(limit, state, now, cost)
      if cost == 0 then return state end
      local debt, at = standing(limit, state, now)
      -- A sum of 2^53 or more is cut off: what it is cut off at is below.
      local most = min(2 * limit[3] * limit[1], EXACT_MAX)
      return { min(debt + price_of(limit, cost), max(most, debt)), at }
    end

    function self.refund(limit, state, now, cost, charged_at, debt_before)
      local reached = max(now, state[2])
      state = anchored(limit, state, now)
      if charged_at > reached then return state end
      local debt, at = standing(limit, state, now)
      debt_before = min(debt_before, EXACT_MAX)
      local price = min(price_of(limit, cost), EXACT_MAX - debt_before)
      -- A product of 2^53 or more is more than the debt it is taken from.
      local line = max(debt_before + price - (reached - charged_at) * limit[2], 0)
      local back = min(line, price, debt)
      if back == 0 then return state end
      if back == debt then return { 0, 0, 0 } end
      return { debt - back, at }
    end

    function self.used(limit, state, now)
      local debt, at = standing(limit, state, now)
      return min(div_ceil(debt, limit[1]), COUNT_MAX), at
    end

    function self.with_used(limit, units, now)
      return { price_of(limit, units), now }
    end
  end

  token_bucket = {
    header = '1t', first_kept = 1, counters = 2,
    anchored = anchored, decide = decide, more = more,
  }
  if ASKED[3] then
    -- What a leaky bucket is built on.
    token_bucket.standing, token_bucket.repaid_in = standing, repaid_in
    token_bucket.decision, token_bucket.charged = decision, charged
  end
end
-- Twin of leaky_bucket.rs.
-- limit: ticks_per_unit, ticks_per_micro, queue, period, max_delay. state: as token_bucket.
local leaky_bucket
if ASKED[3] then
  local standing, repaid_in = token_bucket.standing, token_bucket.repaid_in
  local charged = token_bucket.charged

  local function until_short(limit, delay)
    return max(delay - limit[5], 0)
  end

  local function bounded_by_delay(limit, answer)
    local wait = until_short(limit, answer[RESET_AFTER])
    if wait == 0 then return answer end
    if answer[REMAINING] == 0 then wait = max(wait, answer[NEXT_AFTER]) end
    answer[REMAINING], answer[NEXT_AFTER] = 0, wait
    return answer
  end

  local function decision(limit, outcome, debt, behind, retry_after)
    local answer = token_bucket.decision(limit, outcome, debt, behind, retry_after)
    return bounded_by_delay(limit, answer)
  end

  local function decide(limit, state, now, cost)
    local debt, at, behind = standing(limit, state, now)
    local queue = limit[3]
    if cost > queue then return decision(limit, TOO_COSTLY, debt, behind, NONE), state end
    local price, capacity = cost * limit[1], queue * limit[1]
    local delay = repaid_in(limit, debt, behind)
    local until_room = repaid_in(limit, max(debt - (capacity - price), 0), behind)
    local wait = 0
    if cost ~= 0 then wait = until_short(limit, delay) end
    if until_room == 0 and wait == 0 then
      local answer, after = charged(limit, state, debt, at, behind, cost, price)
      answer[DELAY] = delay
      return bounded_by_delay(limit, answer), after
    end
    return decision(limit, DENIED, debt, behind, max(until_room, wait)), state
  end

  local function more(self)
    token_bucket.more(self)
    local force = self.force
    function self.force(limit, state, now, cost)
      local answer, after = force(limit, state, now, cost)
      return bounded_by_delay(limit, answer), after
    end
  end

  leaky_bucket = {
    header = '1l', first_kept = 1, counters = 2,
    anchored = token_bucket.anchored, decide = decide, more = more,
  }
end
-- Twin of fixed_window.rs.
-- limit: count, period, 1 if aligned by key. state: used, start.
local fixed_window
if ASKED[4] then
  local function start_of(limit, now)
    if limit[3] == 1 then return now end
    return now - fmod(now, limit[2])
  end

  local function anchored(limit, state, now)
    if state[2] <= now then return state end
    return { state[1], min(state[2], plus(start_of(limit, now), limit[2])) }
  end

  local function current(limit, state, now)
    local used, start = state[1], state[2]
    now = max(now, start)
    if used > 0 and now - start < limit[2] then return used, start end
    return 0, start_of(limit, now)
  end

  local function decision(limit, outcome, used, start, now, retry_after)
    local until_next = 0
    if used ~= 0 then until_next = until_passed(now, limit[2], start) end
    local most = limit[1]
    local remaining = max(most - used, 0)
    return { outcome, most, remaining, until_next, until_next, retry_after, 0, 0, 0, 0 }
  end

  local function charged(limit, state, used, start, now, cost)
    local taken = min(cost, COUNT_MAX - used)
    local answer = decision(limit, ALLOWED, used + taken, start, now, NONE)
    answer[CHARGED], answer[CHARGED_AT] = taken, max(now, start)
    if cost == 0 then return answer, state end
    return answer, { used + taken, start }
  end

  local function decide(limit, state, now, cost)
    local used, start = current(limit, state, now)
    if used + cost <= limit[1] then return charged(limit, state, used, start, now, cost) end
    if cost > limit[1] then
      return decision(limit, TOO_COSTLY, used, start, now, NONE), state
    end
    local retry_after = until_passed(now, limit[2], start)
    return decision(limit, DENIED, used, start, now, retry_after), state
  end

  local function more(self)
    function self.force(limit, state, now, cost)
      local used, start = current(limit, state, now)
      return charged(limit, state, used, start, now, cost)
    end

    function self.punish(limit, state, now, cost)
      local _, after = self.force(limit, state, now, cost)
      return after
    end

    function self.refund(limit, state, now, cost, charged_at)
      local start = state[2]
      local is_charged_here = charged_at >= start and charged_at - start < limit[2]
      state = anchored(limit, state, now)
      if not is_charged_here then return state end
      local left = max(state[1] - cost, 0)
      if left == 0 then return { 0, 0, 0 } end
      return { left, state[2] }
    end

    function self.used(limit, state, now)
      local units, start = current(limit, state, now)
      return units, max(now, start)
    end

    function self.with_used(limit, units, now)
      return { units, start_of(limit, now) }
    end
  end

  fixed_window = {
    header = '1f', first_kept = 2, counters = 2,
    anchored = anchored, decide = decide, more = more,
  }
end
-- Twin of sliding_window.rs.
-- limit: count, period. state: current, previous, number of the window.
local sliding_window
if ASKED[1] then
  -- `a × b ÷ c`, whole and remainder, of an `a` below 2^35 and `b` and `c` below 2^45.
  local function multiply_divide(a, b, c)
    local product = a * b
    if product <= EXACT_MAX then
      local rest = fmod(product, c)
      return (product - rest) / c, rest
    end
    -- Long multiplication, seven bits of `a` at a time from the top. The rest is below 2^45, so
    -- each step stays below 2^45 × 2^7 + 2^7 × 2^45 = 2^53.
    local whole, rest, power = 0, 0, 2 ^ 28
    while power >= 1 do
      local digit = div_floor(a, power)
      local part = rest * 128 + digit * b
      rest = fmod(part, c)
      whole = whole * 128 + (part - rest) / c
      a, power = a - digit * power, power / 128
    end
    return whole, rest
  end

  local function anchored(limit, state, now)
    local period, number = limit[2], state[3]
    if number * period <= now then return state end
    return { state[1], state[2], min(number, div_floor(now, period) + 1) }
  end

  -- The two counts and the number of the window now, how much of it has passed, and how far the
  -- clock is behind it. A window that was written began before the end of time, so that
  -- number × period is exact.
  local function standing(limit, state, now)
    local period, current, previous, number = limit[2], state[1], state[2], state[3]
    local elapsed = now - number * period
    if elapsed < 0 then return current, previous, number, 0, -elapsed end
    if elapsed < period then return current, previous, number, elapsed, 0 end
    if elapsed >= 2 * period then current = 0 end
    number = div_floor(now, period)
    return 0, current, number, now - number * period, 0
  end

  local function estimate(limit, current, previous, elapsed)
    if previous == 0 then return current end
    local whole = multiply_divide(previous, limit[2] - elapsed, limit[2])
    return current + whole
  end

  local function faded_at(period, previous, room)
    if previous <= room then return 0 end
    local whole, part = multiply_divide(room + 1, period, previous)
    if part > 0 then whole = whole + 1 end
    return period + 1 - whole
  end

  local function falls_to(limit, room, current, previous, elapsed, behind)
    local period, wait = limit[2], nil
    if current <= room then
      wait = max(faded_at(period, previous, room - current) - elapsed, 0)
    else
      wait = period - elapsed + faded_at(period, current, room)
    end
    if wait == 0 then return 0 end
    return wait + behind
  end

  local function decision(limit, outcome, units, current, previous, elapsed, behind)
    local most = limit[1]
    local remaining = max(most - units, 0)
    local reset_after, next_after = 0, 0
    if units ~= 0 then
      local room = max(most - (remaining + 1), 0)
      reset_after = falls_to(limit, 0, current, previous, elapsed, behind)
      next_after = falls_to(limit, room, current, previous, elapsed, behind)
    end
    return { outcome, most, remaining, reset_after, next_after, NONE, 0, 0, 0, 0 }
  end

  local function charged(limit, state, now, cost, units)
    local current, previous, number, elapsed, behind = standing(limit, state, now)
    local taken = min(cost, COUNT_MAX - current)
    current = current + taken
    local answer = decision(limit, ALLOWED, units + taken, current, previous, elapsed, behind)
    answer[CHARGED], answer[CHARGED_AT] = taken, number * limit[2] + elapsed
    if cost == 0 then return answer, state end
    return answer, { current, previous, number }
  end

  local function decide(limit, state, now, cost)
    local current, previous, _, elapsed, behind = standing(limit, state, now)
    local units, most = estimate(limit, current, previous, elapsed), limit[1]
    if units + cost <= most then return charged(limit, state, now, cost, units) end
    if cost > most then
      return decision(limit, TOO_COSTLY, units, current, previous, elapsed, behind), state
    end
    local denial = decision(limit, DENIED, units, current, previous, elapsed, behind)
    denial[RETRY_AFTER] = falls_to(limit, most - cost, current, previous, elapsed, behind)
    return denial, state
  end

  local function more(self)
    function self.force(limit, state, now, cost)
      local current, previous, _, elapsed = standing(limit, state, now)
      return charged(limit, state, now, cost, estimate(limit, current, previous, elapsed))
    end

    function self.punish(limit, state, now, cost)
      local _, after = self.force(limit, state, now, cost)
      return after
    end

    function self.refund(limit, state, now, cost, charged_at)
      local windows_ago = state[3] - div_floor(charged_at, limit[2])
      state = anchored(limit, state, now)
      local current, previous = state[1], state[2]
      if windows_ago == 0 then current = max(current - cost, 0) end
      if windows_ago == 1 then previous = max(previous - cost, 0) end
      if current == 0 and previous == 0 then return { 0, 0, 0 } end
      return { current, previous, state[3] }
    end

    function self.used(limit, state, now)
      local period = limit[2]
      local current, previous, number, elapsed = standing(limit, state, now)
      local whole, part = multiply_divide(previous, period - elapsed, period)
      local units = current + whole
      if units > 0 and part > 0 then units = units + 1 end
      return min(units, COUNT_MAX), number * period + elapsed
    end

    function self.with_used(limit, units, now)
      return { units, 0, div_floor(now, limit[2]) }
    end
  end

  sliding_window = {
    header = '1s', first_kept = 2, counters = 3,
    anchored = anchored, decide = decide, more = more,
  }
end
-- Twin of held.rs, with a sorted set for a log.
--
-- An entry is a member `id:units` whose score is the moment it was made. One more member names the
-- format, the algorithm and the hold (`1sliding_log 60000000`); its score is the units of all
-- entries, negated, so that it comes before them and nothing ever needs to be added up.
--
-- Rust says what is to be done to a log and leaves doing it to the owner. Here the log is at hand,
-- so what time alone does to it is done when it is looked at, whatever the verdict will be.
--
-- limit: units, hold. state: key, units of all entries, moment of the newest, the entries that were
-- taken and are not in the log yet, and the oldest entry, where it is known.
local holding
if ASKED[5] or ASKED[6] then
  -- These are bounds.rs's to say.
  local LOG_ENTRIES_MAX = 100000
  local LOG_WALK_MAX = 1000

  -- `..` and tostring keep 14 digits only.
  local function number_text(number)
    return string.format('%.0f', number)
  end

  local function marker(limit)
    return limit.algorithm.marker .. number_text(limit[2])
  end

  -- The hold that a log was written under; zero if this is no marker of the algorithm's.
  local function hold_of(limit, member)
    local name = limit.algorithm.marker
    if string.sub(member, 1, #name) ~= name then return 0 end
    return tonumber(string.sub(member, #name + 1)) or 0
  end

  local function units_of(member)
    return tonumber(string.match(member, ':(%d+)$'))
  end

  -- Whether each entry holds one unit, if all hold `units`: then nothing needs to be added up.
  local function are_single(key, units)
    return redis.call('ZCARD', key) - 1 == units
  end

  local function newest(key)
    local last = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
    return tonumber(last[2]), last[1]
  end

  -- Keeps the sum, with an entry if one is given, and sees to it that the key goes when nothing
  -- holds any more.
  local function keep(limit, key, units, newest_at, member)
    if units == 0 then
      redis.call('UNLINK', key)
      return
    end
    local sum = number_text(-units)
    if member then
      redis.call('ZADD', key, sum, marker(limit), number_text(newest_at), member)
    else
      redis.call('ZADD', key, sum, marker(limit))
    end
    if not IS_VIRTUAL then
      redis.call('PEXPIRE', key, ttl_millis(until_passed(NOW, limit[2], newest_at)))
    end
  end

  local function standing(limit, key, now)
    local hold = limit[2]
    local state = { key = key, used = 0, newest_at = 0, taken = {}, oldest = false, oldest_at = 0 }
    local front = replied(redis.pcall('ZRANGE', key, 0, 1, 'WITHSCORES'), key) or {}
    if not front[1] then return state end
    -- What had ended under another hold does not come back: the shorter of the two counts.
    local shorter = min(hold_of(limit, front[1]), hold)
    local newest_at = newest(key)
    if now - newest_at >= shorter or shorter == 0 then
      -- All of it has ended, however long it is; or it is another algorithm's or version's.
      redis.call('UNLINK', key)
      return state
    end
    local units, is_carried = -front[2], front[1] ~= marker(limit)
    local is_changed = is_carried
    if now - front[4] >= shorter then
      local last = number_text(now - shorter)
      if are_single(key, units) then
        units = units - redis.call('ZREMRANGEBYSCORE', key, 0, last)
      else
        -- However many they are: each was let in once, and is read and removed once.
        for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, 0, last)) do
          units = units - units_of(member)
        end
        redis.call('ZREMRANGEBYSCORE', key, 0, last)
      end
      is_changed = true
    end
    if is_carried then redis.call('ZREM', key, front[1]) end
    if newest_at > plus(now, shorter) then
      newest_at = plus(now, shorter)
      local latest = number_text(newest_at)
      for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. latest, '+inf')) do
        redis.call('ZADD', key, latest, member)
      end
      is_changed = true
    end
    if is_changed then
      keep(limit, key, units, newest_at)
    else
      state.oldest, state.oldest_at = front[3], tonumber(front[4])
    end
    state.used, state.newest_at = units, newest_at
    return state
  end

  -- Twin of Holding::falls_to. What was taken is not in the log yet, and as late as the newest.
  local function falls_to(limit, room, state, now)
    if not limit.algorithm.end_is_known then return NONE end
    local key, hold, excess = state.key, limit[2], state.used - room
    if state.oldest and units_of(state.oldest) >= excess then
      return until_passed(now, hold, state.oldest_at)
    end
    -- Of the first, second, … entry: the marker comes before them, at 0.
    local function moment_at(place)
      return tonumber(redis.call('ZRANGE', key, place, place, 'WITHSCORES')[2])
    end
    local units, ended = state.used, 0
    for _, entry in ipairs(state.taken) do units = units - entry.units end
    if excess > 1 and not are_single(key, units) then
      local stop = moment_at(min(excess, LOG_WALK_MAX) + 1)
      stop = stop and '(' .. number_text(stop) or '+inf'
      for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, 0, stop)) do
        excess, ended = excess - units_of(member), ended + 1
        if excess <= 0 then return until_passed(now, hold, moment_at(ended)) end
      end
    end
    return until_passed(now, hold, moment_at(ended + excess) or state.newest_at)
  end

  local function decision(limit, outcome, state, now, retry_after)
    local most = limit[1]
    local remaining = max(most - state.used, 0)
    local reset_after, next_after = 0, 0
    if state.used ~= 0 then
      reset_after = until_passed(now, limit[2], state.newest_at)
      next_after = falls_to(limit, max(most - (remaining + 1), 0), state, now)
    end
    return { outcome, most, remaining, reset_after, next_after, retry_after, 0, 0, 0, 0 }
  end

  local function force(limit, state, now, cost, id)
    if cost == 0 then return decision(limit, ALLOWED, state, now, NONE), state end
    local at, taken = max(state.newest_at, now), { unpack(state.taken) }
    taken[#taken + 1] = { at = at, id = id, units = cost }
    local after = {
      key = state.key, used = state.used + cost, newest_at = at, taken = taken,
      oldest = state.oldest, oldest_at = state.oldest_at,
    }
    local answer = decision(limit, ALLOWED, after, now, NONE)
    answer[CHARGED], answer[CHARGED_AT] = cost, at
    return answer, after
  end

  local function decide(limit, state, now, cost, id)
    local most = limit[1]
    if state.used + cost <= most then return force(limit, state, now, cost, id) end
    if cost > most then return decision(limit, TOO_COSTLY, state, now, NONE), state end
    local retry_after = falls_to(limit, most - cost, state, now)
    return decision(limit, DENIED, state, now, retry_after), state
  end

  -- Twin of Log::push; tells what is used then.
  local function push(limit, key, used, entry)
    local id, units = entry.id, entry.units
    -- As many entries need as many units, so most of the time nobody has to count.
    if used >= LOG_ENTRIES_MAX and redis.call('ZCARD', key) > LOG_ENTRIES_MAX then
      local _, last = newest(key)
      redis.call('ZREM', key, last)
      id, units = string.match(last, '^(%d+):'), units_of(last)
      used = used - units
      units = min(units + entry.units, COUNT_MAX)
    end
    keep(limit, key, used + units, entry.at, id .. ':' .. number_text(units))
    return used + units
  end

  -- Enters what was taken.
  local function apply(limit, state)
    local used = state.used
    for _, entry in ipairs(state.taken) do used = used - entry.units end
    for _, entry in ipairs(state.taken) do used = push(limit, state.key, used, entry) end
  end

  -- Leaves `left` units of an entry, or nothing of it.
  local function replace(key, member, at, left)
    redis.call('ZREM', key, member)
    if left == 0 then return end
    local id = string.match(member, '^(%d+):')
    redis.call('ZADD', key, at, id .. ':' .. number_text(left))
  end

  local function more(self)
    -- Twin of Logged::credit.
    function self.credit(limit, state, now, units)
      apply(limit, state)
      local key, used, newest_at = state.key, state.used, state.newest_at
      while units > 0 and used > 0 do
        local at, last = newest(key)
        local held = units_of(last)
        local back = min(units, held)
        replace(key, last, number_text(at), held - back)
        units, used = units - back, used - back
        newest_at = newest(key)
      end
      if used < state.used then keep(limit, key, used, newest_at) end
      return standing(limit, key, now)
    end

    -- The limit that the log was written under, as far as the hold goes; nothing if there is no log
    -- of this algorithm, and then whether there is another's state.
    function self.written_under(limit, key)
      local front = redis.pcall('ZRANGE', key, 0, 0)
      if is_of_another(front) then return nil, true end
      if not front[1] then return nil, false end
      local hold = hold_of(limit, front[1])
      if hold == 0 then return nil, true end
      return { limit[1], hold, algorithm = limit.algorithm }
    end

    -- Twin of Logged::give_back. `held` is what the charge holds, since its member is named by it.
    function self.give_back(limit, key, now, id, held, units)
      local state = standing(limit, key, now)
      local member = id .. ':' .. number_text(held)
      local at = redis.call('ZSCORE', key, member)
      if not at then return 0 end
      local back = min(units, held)
      replace(key, member, at, held - back)
      keep(limit, key, state.used - back, newest(key))
      return back
    end

    -- Twin of Logged::renew.
    function self.renew(limit, key, now, id, held)
      local state = standing(limit, key, now)
      if redis.call('ZREM', key, id .. ':' .. number_text(held)) == 0 then return 0 end
      local newest_at = newest(key)
      push(limit, key, state.used - held, { at = max(newest_at, now), id = id, units = held })
      return 1
    end
  end

  function holding(name, end_is_known)
    return {
      is_log = true, marker = '1' .. name .. ' ', end_is_known = end_is_known,
      standing = standing, decide = decide, force = force, apply = apply, more = more,
    }
  end
end
-- Twin of sliding_log.rs.
-- limit: count, period.
local sliding_log = ASKED[5] and holding('sliding_log', true)
-- Twin of concurrency.rs.
-- limit: slots, lease.
local concurrency = ASKED[6] and holding('concurrency', false)
-- Twin of leases.rs: what other scripts must know of units out on lease.
--
-- The leases of a bucket follow its counters in the same string, three numbers each: id, units, the
-- moment it ends. What is out counts as used in the debt, so that a script decides on a state with
-- leases as on any other once it is brought to now.
local LEASE_MICROS = 1000000
local leases_of
if ASKED[2] then
  -- What can be done to the leases of buckets; made when a bucket has some.
  function leases_of(bucket)
    -- Ticks of a bucket that are out on lease.
    local function outstanding(limit, leases)
      local sum = 0
      for i = 2, #leases, 3 do
        sum = min(sum + bucket.with_used(limit, leases[i], 0)[1], EXACT_MAX)
      end
      return sum
    end

    local function first_ended(leases, now)
      local first
      for i = 1, #leases, 3 do
        local ends_at = leases[i + 2]
        if ends_at <= now and not (first and leases[first + 2] <= ends_at) then first = i end
      end
      return first
    end

    local function remove(leases, at)
      for _ = 1, 3 do table.remove(leases, at) end
    end

    -- Twin of Leasable::settle. The list is changed in place, the state is returned.
    local function settled(limit, state, leases, now)
      local owed = max(state[1] - outstanding(limit, leases), 0)
      state = bucket.anchored(limit, { owed, state[2] }, now)
      -- A clock that stepped back makes no lease longer than leases are.
      local latest = plus(now, LEASE_MICROS)
      for i = 3, #leases, 3 do leases[i] = min(leases[i], latest) end
      local first = first_ended(leases, now)
      while first do
        local at = max(leases[first + 2], state[2])
        local _, after = bucket.force(limit, state, at, leases[first + 1])
        state = after
        remove(leases, first)
        first = first_ended(leases, now)
      end
      local owing = bucket.force(limit, state, now, 0)
      local debt = min(owing[DEBT_BEFORE] + outstanding(limit, leases), EXACT_MAX)
      if debt == 0 then return { 0, 0, 0 } end
      return { debt, owing[CHARGED_AT] }
    end

    return outstanding, settled, remove
  end
end
-- Twin of limit.rs.
--
-- A limit is a list of the five numbers that define it, with its `algorithm`.
--
-- The state of a counter is one string in MessagePack, which is small and quick to read: the
-- format's version and the algorithm's letter (`1t`), then four words: the numbers of the limit it
-- was written under that give the counters their meaning (those that counts_like compares, from
-- `first_kept` on), and the counters; then, of a bucket that has some, the leases (leases.lua), which
-- travel with the limit, as `leases`. Anything else under the key, be it another algorithm's or of
-- another type, counts as a key never seen.
--
-- So does a state of another version, and is overwritten. Therefore a version that others cannot
-- read must have keys of its own: then neither sees or destroys what the other counts, and until the
-- last node is changed each of the two admits its limit. What all versions of format 1 agree on is
-- held by the frozen scripts of tests/it/v1.
local ALGORITHMS =
  { sliding_window, token_bucket, leaky_bucket, fixed_window, sliding_log, concurrency }

-- An algorithm with the functions that are rarely asked for.
local function whole(algorithm)
  if not algorithm.refund and not algorithm.renew then algorithm.more(algorithm) end
  return algorithm
end

-- The state of a counter as it was written, the limit it was written under, and its text.
local function stored_state(limit, key)
  local text = replied(redis.pcall('GET', key), key)
  local algorithm = limit.algorithm
  if not text or string.sub(text, 2, 3) ~= algorithm.header then return { 0, 0, 0 }, limit end
  local first = algorithm.first_kept
  local _, a, b, c, d, has_leases = cmsgpack.unpack(text)
  local state, is_alike, written_under = { b, c, d }, a == limit[first], limit
  if algorithm.counters == 2 then
    state, is_alike = { c, d }, is_alike and b == limit[first + 1]
  end
  if not is_alike then
    written_under = { limit[1], limit[2], limit[3], limit[4], limit[5], algorithm = algorithm }
    written_under[first] = a
    if algorithm.counters == 2 then written_under[first + 1] = b end
  end
  if has_leases then
    local leases = { select(6, cmsgpack.unpack(text)) }
    local _, settled = leases_of(whole(algorithm))
    state = settled(written_under, state, leases, NOW)
    if #leases > 0 then limit.leases, written_under.leases = leases, leases end
  end
  return state, written_under, text
end

-- The state of a key, carried over to this limit, the text it was read from, and whether it was
-- written under another. Its time is to be brought back, if it is too far ahead, before anything is
-- decided.
local function load_state(limit, key, now)
  local algorithm = limit.algorithm
  if algorithm.is_log then return algorithm.standing(limit, key, now) end
  local state, written_under, text = stored_state(limit, key)
  if written_under ~= limit then
    local used, moment = whole(algorithm).used(written_under, state, now)
    state = { 0, 0, 0 }
    if used ~= 0 then
      state = algorithm.anchored(limit, algorithm.with_used(limit, used, moment), now)
    end
    -- More may be out than the other quota could count.
    if limit.leases then
      local _, settled = leases_of(algorithm)
      state = settled(limit, state, limit.leases, now)
    end
    return state, text, true
  end
  return state, text
end

-- Writes what changed since `text_before` was read: a charge, a time brought back. What is whole
-- again after `reset_after` is vacant then.
local function save_state(limit, key, state, text_before, reset_after)
  local algorithm, leases = limit.algorithm, limit.leases
  if algorithm.is_log then return algorithm.apply(limit, state) end
  local header, first = algorithm.header, algorithm.first_kept
  local a, b, c, text = state[1], state[2], state[3], nil
  if leases then
    c = 0
    text = cmsgpack.pack(header, limit[first], limit[first + 1], a, b, unpack(leases))
    -- What is out becomes debt when its lease ends, at the latest.
    reset_after = plus(reset_after, LEASE_MICROS)
  elseif algorithm.counters == 2 then
    c = 0
    text = cmsgpack.pack(header, limit[first], limit[first + 1], a, b)
  else
    text = cmsgpack.pack(header, limit[first], a, b, c)
  end
  if text == text_before then return end
  if a == 0 and b == 0 and c == 0 and not leases then
    if text_before then redis.call('UNLINK', key) end
  elseif IS_VIRTUAL then
    redis.call('SET', key, text)
  else
    redis.call('SET', key, text, 'PX', ttl_millis(reset_after))
  end
end
-- Decides the charges of one request and takes them: all of them or none.
--
-- KEYS[i]    the state of charge i; one that comes twice is charged twice, under one limit
-- ARGV[1]    now in microseconds, or '' to read this server's clock (production always does)
-- ARGV[i+1]  ten values in MessagePack: algorithm (see prelude.lua), cost, mode (0 enforce, 1 shadow,
--            2 force, 3 credit), 1 if denied requests count, id, then five numbers that define the
--            limit
-- Returns    per charge ten: outcome (0 allowed, 1 denied, 2 too costly), limit, remaining,
--            reset_after, next_after, retry_after, delay, and the receipt: the cost that was
--            charged, at which moment, and the debt before it; zeroes if the request was denied, so
--            that there is nothing to give back. Waits are in microseconds, -1 if none is known.
--
-- A charge is made if the limit itself allows it, and all that are enforced allow theirs. One that
-- is not made because another limit denied is answered as a peek is, so that its figures are those
-- of the state it left alone. A limit that counts denied requests is charged whatever the verdict,
-- and answers with the figures from after that; but never what it could not ever allow.
--
-- A credit gives back, if the request is allowed, after all that was charged. It denies nothing and
-- is answered as a peek is.
local ANSWER = 10
local ENFORCE, FORCE, CREDIT = 0, 2, 3

local function is_same(one, other)
  return one[1] == other[1] and one[2] == other[2] and one[3] == other[3]
end

-- Decides each on what the ones before it leave of its key. A limit is also the account of its key.
local charges, accounts, all_allow = {}, {}, true
for i, key in ipairs(KEYS) do
  local algorithm, cost, mode, count_denied, id, a, b, c, d, e = cmsgpack.unpack(ARGV[i + 1])
  local limit = accounts[key]
  if not limit then
    limit = {
      a, b, c, d, e, algorithm = ALGORITHMS[algorithm],
      state = false, state_before = false, text = false, is_carried = false, reset_after = 0,
    }
    local state, text, is_carried = load_state(limit, key, NOW)
    if not limit.algorithm.is_log then state = limit.algorithm.anchored(limit, state, NOW) end
    limit.state, limit.state_before, limit.text, limit.is_carried = state, state, text, is_carried
    accounts[key] = limit
  end
  local decide, taken, answer = limit.algorithm.decide, cost, nil
  if mode == FORCE then
    decide = whole(limit.algorithm).force
  elseif mode == CREDIT then
    taken = 0
  end
  answer, limit.state = decide(limit, limit.state, NOW, taken, id)
  if answer[OUTCOME] ~= ALLOWED and (mode == ENFORCE or mode == FORCE) then all_allow = false end
  charges[i] = {
    limit = limit, cost = cost, mode = mode, decide = decide, answer = answer,
    counts_denied = count_denied == 1,
  }
end
if not all_allow then
  for _, limit in pairs(accounts) do limit.state = limit.state_before end
end

-- Settles what is not as it was decided, and answers.
local reply
for _, charge in ipairs(charges) do
  local limit, cost, answer = charge.limit, charge.cost, charge.answer
  local algorithm, outcome = limit.algorithm, answer[OUTCOME]
  local counts_denied = charge.counts_denied and not algorithm.is_log
  if charge.mode == CREDIT then
    if all_allow and algorithm.is_log then
      limit.state = whole(algorithm).credit(limit, limit.state, NOW, cost)
    elseif all_allow then
      -- Twin of Counter::credit: as if just charged, so that time has given nothing of it back.
      limit.state = whole(algorithm).refund(limit, limit.state, NOW, cost, NOW, 0)
    end
    answer, limit.state = algorithm.decide(limit, limit.state, NOW, 0)
  elseif outcome == DENIED and counts_denied and cost > 0 then
    limit.state = whole(algorithm).punish(limit, limit.state, NOW, cost)
    limit.is_carried = false
    answer = algorithm.decide(limit, limit.state, NOW, cost)
  elseif outcome == ALLOWED and not all_allow then
    local delay = answer[DELAY]
    if counts_denied then
      answer, limit.state = charge.decide(limit, limit.state, NOW, cost)
    else
      answer, limit.state = algorithm.decide(limit, limit.state, NOW, 0)
    end
    -- Only the figures are those of now: a key that comes twice may have been punished meanwhile.
    answer[OUTCOME], answer[RETRY_AFTER], answer[DELAY] = ALLOWED, NONE, delay
  end
  if not all_allow or charge.mode == CREDIT then
    answer[CHARGED], answer[CHARGED_AT], answer[DEBT_BEFORE] = 0, 0, 0
  elseif limit.leases then
    -- Time repays what is owed, not what is out on lease.
    local outstanding = leases_of(whole(algorithm))
    answer[DEBT_BEFORE] = max(answer[DEBT_BEFORE] - outstanding(limit, limit.leases), 0)
  end
  limit.reset_after = answer[RESET_AFTER]
  if not reply then
    reply = answer
  else
    local last = #reply
    for j = 1, ANSWER do reply[last + j] = answer[j] end
  end
end
-- Carrying over rounds up, so a state is written under another quota only with a charge: a key that
-- is merely looked at under two quotas by turns must not lose by it.
for key, limit in pairs(accounts) do
  if not (limit.is_carried and is_same(limit.state, limit.state_before)) then
    save_state(limit, key, limit.state, limit.text, limit.reset_after)
  end
end
return reply or {}
