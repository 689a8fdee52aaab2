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
-- taken and are not in the log yet, the oldest entry, where it is known, and whether something that
-- is no log of ours is under the key: it goes when something is entered.
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

  -- A member that is none of ours holds nothing, and goes when its time is over.
  local function units_of(member)
    return tonumber(string.match(member, ':(%d+)$')) or 0
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
    if units <= 0 then
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
    local state = {
      key = key, used = 0, newest_at = 0, taken = {}, oldest = false, oldest_at = 0,
      is_of_another = false,
    }
    local front = replied(redis.pcall('ZRANGE', key, 0, 1, 'WITHSCORES'))
    if front and not front[1] then return state end
    -- What had ended under another hold does not come back: the shorter of the two counts.
    local shorter = front and min(hold_of(limit, front[1]), hold) or 0
    if shorter <= 0 or not front[3] or not is_whole(-front[2], 1) then
      -- Another algorithm's or version's, or nobody's.
      state.is_of_another = true
      return state
    end
    local newest_at = newest(key)
    if now - newest_at >= shorter then
      -- All of it has ended, however long it is.
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
    if state.is_of_another then return until_passed(now, hold, state.newest_at) end
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
      oldest = state.oldest, oldest_at = state.oldest_at, is_of_another = state.is_of_another,
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
      id, units = string.match(last, '^(%d+):') or id, units_of(last)
      used = used - units
      units = min(units + entry.units, COUNT_MAX)
    end
    keep(limit, key, used + units, entry.at, id .. ':' .. number_text(units))
    return used + units
  end

  -- Enters what was taken.
  local function apply(limit, state)
    local used = state.used
    if state.is_of_another and state.taken[1] then redis.call('UNLINK', state.key) end
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
        -- Should the sum have been more than its entries, there is nothing left of it.
        if at < 0 then
          used = 0
          break
        end
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
